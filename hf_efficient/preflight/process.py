"""One process of a preflight check: it trains on the longest rows and saves, or loads, and notes what it saw."""

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import torch
from safetensors import safe_open
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from trl import DPOConfig, SFTConfig

from hf_efficient.callbacks.shrink import is_out_of_memory
from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.objectives import PromptData
from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.launch.arguments import settle, training_arguments
from hf_efficient.launch.build import build
from hf_efficient.launch.checkpoints import written_by_the_run
from hf_efficient.launch.exits import cause_of, is_full_disk
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.output import locked, plan_output
from hf_efficient.launch.preflight_wanted import fingerprint_of
from hf_efficient.launch.run import gather_when_saved
from hf_efficient.model.structure import whole_count
from hf_efficient.planning.batches import Lengths, RunRows, run_shapes
from hf_efficient.planning.run_data import rows_of
from hf_efficient.planning.simulated_trainer import is_evaluated
from hf_efficient.preflight import launches
from hf_efficient.preflight.launches import STAGES, Part, RankNotes, Stage
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.meters import peak_rss_bytes
from hf_efficient.records.account import FailureKind
from hf_efficient.run_dir.checkpoints import checkpoints
from hf_efficient.run_dir.json_file import write_whole


def digest(tensor: torch.Tensor) -> str:
    """Type, shape, and a hash of its bytes."""
    held: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} {hashlib.sha256(held).hexdigest()}"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it: all, its share of a DTensor (FSDP2), or its partition of a parameter (ZeRO-3)."""
    partition = getattr(tensor, "ds_tensor", None)
    if partition is not None:
        return partition
    local = getattr(tensor, "to_local", None)
    return local() if callable(local) else tensor


def weight_digests(model: nn.Module) -> dict[str, str]:
    trained = ((name, held) for name, held in model.named_parameters() if held.requires_grad)
    return {name: digest(local_part(held)) for name, held in trained}


def optimizer_digests(optimizer: Any, model: nn.Module) -> dict[str, str]:
    inner, wrapped = optimizer, set()
    while getattr(inner, "optimizer", None) is not None and id(inner) not in wrapped:
        wrapped.add(id(inner))
        inner = inner.optimizer
    names = {id(held): name for name, held in model.named_parameters()}
    return dict(_state_digests(inner, names))


def _state_digests(optimizer: Any, names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    state: Mapping[Any, Any] = getattr(optimizer, "state", {})
    grouped = [held for group in optimizer.param_groups for held in group["params"]]
    known = {id(held) for held in grouped}
    apart = [held for held in state if isinstance(held, torch.Tensor) and id(held) not in known]
    for place, held in enumerate([*grouped, *apart]):
        name = names.get(id(held))
        if name is None:  # DeepSpeed's flat copies in float32
            name = f"partition {place}"
            yield name, digest(local_part(held))
        for key, value in sorted(state.get(held, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{name} {key}", digest(local_part(value))
            elif isinstance(value, (int, float)):
                yield f"{name} {key}", repr(value)


_Data = TypeVar("_Data", SftData, PreferenceData, PromptData)
ANSWERED_AT_ONCE = 8  # prompts that ``AnswerEvaluator`` answers together, per process


def longest_data(data: _Data, args: SFTConfig | DPOConfig, steps: int) -> _Data:
    """Data of so many optimizer steps and one evaluation batch, each the longest on every process."""
    world_size = args.world_size
    batches = args.gradient_accumulation_steps * world_size * steps
    held = RunRows(data.lengths, data.eval_lengths) if isinstance(data, PromptData) else rows_of(data, args)
    count = args.per_device_eval_batch_size
    rows = longest_rows(held.train, args.per_device_train_batch_size)
    changes: dict[str, Any] = {"train": data.train.select(rows * batches)}
    if data.eval is not None and held.evaluation is not None:
        # Of fewer rows than a batch has, several processes get full batches (accelerate begins again), one does not.
        rows = longest_rows(held.evaluation, count if world_size > 1 else min(count, len(held.evaluation)))
        changes["eval"] = data.eval.select(rows * world_size)
    if isinstance(data, SftData):
        prompts = sorted(data.eval_examples, key=lambda one: len(json.dumps(one["prompt"])), reverse=True)
        changes["eval_examples"] = prompts[: ANSWERED_AT_ONCE * world_size]
    return replace(data, **changes)


def longest_rows(held: Lengths, count: int) -> list[int]:
    """Indices of the ``count`` longest rows (or pairs), the longest first; from the first one again where there are
    fewer."""
    longest = np.argsort(-held.reshape(len(held), -1).max(axis=1), kind="stable")[:count].tolist()
    return list(islice(cycle(longest), count))


def saved_fault(folder: Path, trained_elements: int) -> str | None:
    """What is wrong with the weights that a run would leave: engines can write a checkpoint whose tensors are empty."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [*folder.glob("pytorch_model*.bin"), *folder.glob("adapter_model.bin")]
        return None if pickled else "no weights were written"
    elements = 0
    for path in files:
        with safe_open(path, framework="np") as held:
            for name in held.keys():  # noqa: SIM118  it is no mapping
                found = math.prod(held.get_slice(name).get_shape())
                if not found:
                    return f"{path.name} holds {name} without a single number"
                elements += found
    if elements < trained_elements:
        return f"of {trained_elements:,} trained numbers only {elements:,} were written"
    return None


def file_bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


_BEFORE_TRAINING = ("starting", "data", "building")


def describe_failure(
    error: Exception, notes: RankNotes, recipe: Recipe | None, args: TrainingArguments | None
) -> tuple[FailureKind, str]:
    """In words that name keys of the recipe, or arguments where there is none."""
    if is_out_of_memory(error):
        shape = ""
        if notes.stage in ("training", "next") and "batch_rows" in notes.figures:
            shape = f" ({notes.figures['batch_rows']} x {notes.figures['batch_tokens']:,} tokens)"
        remedy = _memory_remedy(notes.stage, recipe, args)
        return "memory", f"out of memory in {STAGES[notes.stage]}{shape}: {first_line(error)} {remedy}"
    if isinstance(error, HfEfficientError):
        kind: FailureKind = "save" if notes.stage in ("saving", "final") else "fault"
        return ("input" if notes.stage in _BEFORE_TRAINING else kind), str(error)
    if isinstance(error, ImportError) and recipe is not None:
        return "input", f"a package that the recipe needs is missing: {first_line(error)}"
    fault = f"{STAGES[notes.stage]}: {type(error).__name__}: {first_line(error)}"
    if notes.stage in ("saving", "final"):
        return "save", f"{fault}. {_save_remedy(error, recipe, args)}"
    if notes.stage == "loading":
        return "load", (
            f"{fault}. The checkpoint was saved, and a run could not resume from it: it would be lost with the first "
            "interruption. Write another distributed.strategy, or, to train without, train.save_only_model=true."
        )
    return "fault", fault


def _save_remedy(error: Exception, recipe: Recipe | None, args: TrainingArguments | None) -> str:
    place = recipe.output_dir if recipe is not None else args and args.output_dir
    if is_full_disk(error):
        return f"No room is left for {place}: make room, or write an output_dir=... on another disk."
    if isinstance(error, PermissionError):
        return f"{place} cannot be written by this user: write another output_dir=..."
    strategy = "" if recipe is None else "another distributed.strategy, or "
    return f"The run would train and keep nothing. Write {strategy}another output_dir=..."


def _memory_remedy(stage: Stage, recipe: Recipe | None, args: TrainingArguments | None) -> str:
    train, others = "" if recipe is None else "train.", list[str]()
    if recipe is not None:
        smaller = "adapter.method=qlora" if recipe.adapter.method != "qlora" else "a smaller model.id"
        spread = "distributed.strategy=fsdp2 or zero3 over more processes"
        others = [smaller, spread]
        if args is None or stage in _BEFORE_TRAINING:
            return f"The model itself does not fit. Write {smaller}, or {spread}."
        if stage in ("saving", "final", "loading"):
            return f"The weights are gathered for it. Write {spread} with less on each, or give the host more memory."
    assert args is not None
    ways = []
    if stage == "evaluation":
        if args.per_device_eval_batch_size > 1:
            ways.append(f"{train}per_device_eval_batch_size={args.per_device_eval_batch_size // 2}")
        if recipe is not None and (metrics := recipe.evaluate.metrics):
            ways.append(f"fewer evaluate.metrics (are {', '.join(metrics)})")
        if recipe is not None and (recipe.evaluate.generate.show or "exact_match" in metrics):
            ways.append(f"a smaller evaluate.generate.max_new_tokens (is {recipe.evaluate.generate.max_new_tokens})")
        ways.append(f"a smaller {train}max_length")
        return f"The run would have lost its steps up to there. Write one of: {'; '.join(ways)}."
    rows = args.per_device_train_batch_size
    if rows > 1:
        more = args.gradient_accumulation_steps * rows // (rows // 2)
        ways.append(f"{train}per_device_train_batch_size={rows // 2} {train}gradient_accumulation_steps={more}")
    if not args.gradient_checkpointing:
        ways.append(f"{train}gradient_checkpointing={'true' if recipe else 'True'}")
    most = getattr(args, "max_length", None)
    length = "" if most is None else f" (is {most:,})"
    ways += [f"a smaller {train}max_length{length}", *others]
    return f"Write one of: {'; '.join(ways)}."


class Notebook:
    def __init__(self, folder: Path, part: Part) -> None:
        self.part, self.folder = part, folder
        self.notes = RankNotes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self._mark = time.monotonic()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{self.part}-{self.notes.rank}.json", json.dumps(asdict(self.notes)))

    def enter(self, stage: Stage) -> None:
        self.notes.stage = stage
        self.write()
        self._mark = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._mark

    def note(self, **figures: Any) -> None:
        self.notes.figures.update(figures)


class PreflightWatch(TrainerCallback):
    """Step 1, an evaluation, a save, step 2; or a loaded checkpoint and step 2."""

    def __init__(self, book: Notebook, trainer: Trainer, *, evaluates: bool) -> None:
        self._book, self._trainer, self._evaluates = book, trainer, evaluates
        trainer.add_callback(self)
        step = trainer.training_step

        def noted(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            ids = inputs.get("input_ids") if isinstance(inputs, Mapping) else None  # GRPO's are rows
            if "batch_rows" not in book.notes.figures and isinstance(ids, torch.Tensor) and ids.ndim == 2:
                book.note(batch_rows=int(ids.shape[0]), batch_tokens=int(ids.shape[1]))
            loss = step(model, inputs, *args, **kwargs)
            book.notes.losses.append(float(loss))
            return loss

        trainer.training_step = noted  # type: ignore[method-assign]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._book.part == "load":
            self._book.note(load_seconds=self._book.seconds())
            self._take_digests()
        self._book.enter("next" if self._book.part == "load" else "training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._book.part == "load":
            return
        self._note_peak(args, "training_peak_bytes")
        if state.global_step == 1:
            control.should_evaluate, control.should_save = self._evaluates, True
            self._book.enter("evaluation" if self._evaluates else "saving")

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        rows: Any = self._trainer.eval_dataset
        if rows is not None:
            self._book.note(evaluation_rows=len(rows) // args.world_size)
        if args.device.type == "cuda":  # a process's peak on the host does not show which it was
            self._note_peak(args, "evaluation_peak_bytes")
        self._book.enter("saving")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._book.note(save_seconds=self._book.seconds())
        self._take_digests()  # of what the checkpoint must hold
        if args.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(args.device)
        self._book.enter("next")

    def _take_digests(self) -> None:
        model: Any = self._trainer.model
        self._book.notes.weights = weight_digests(model)
        self._book.notes.optimizer = optimizer_digests(self._trainer.optimizer, model)

    def _note_peak(self, args: TrainingArguments, name: str) -> None:
        if args.device.type == "cuda":
            peak = int(torch.cuda.max_memory_allocated(args.device))
            torch.cuda.reset_peak_memory_stats(args.device)
        else:
            peak = peak_rss_bytes()
        self._book.note(**{name: max(peak, self._book.notes.figures.get(name, 0))})


def check_part(recipe: Recipe, part: Part) -> None:
    """This process's share: ``save`` first, then, in a new launch, ``load``; whatever fails is noted and raised."""
    book = Notebook(launches.preflight_folder(recipe), part)
    book.enter("starting")
    args: SFTConfig | DPOConfig | None = None
    try:
        recipe, args = settle(recipe)
        with locked(Path(recipe.output_dir).expanduser()) if args.process_index == 0 else nullcontext():
            _check(recipe, args, book)
        book.enter("done")
        args.distributed_state.destroy_process_group()
    except BaseException as raised:
        error = cause_of(raised)
        if not isinstance(error, Exception):
            raise
        notes = book.notes
        notes.kind, notes.message = describe_failure(error, notes, recipe, args)
        if notes.kind == "save":  # a full disk then has room for the notes
            shutil.rmtree(book.folder / "run", ignore_errors=True)
        book.write()
        if error is raised:
            raise
        raise error from raised


def _check(recipe: Recipe, args: SFTConfig | DPOConfig, book: Notebook) -> None:
    book.enter("data")
    saves = book.part == "save"
    if args.process_index == 0 and saves:
        plan = plan_output(recipe)
        freed = written_by_the_run(plan.directory) if plan.replaces else []
        freed_bytes = sum(file_bytes([path, *path.rglob("*")]) for path in freed)
        book.note(free_bytes=shutil.disk_usage(book.folder).free + freed_bytes)

    def on_data(data: Any, short_args: SFTConfig | DPOConfig, plan: Any) -> Any:
        if args.process_index == 0 and saves:
            book.note(micro_batches=short_args.gradient_accumulation_steps, **_facts(recipe, args, data))
        book.enter("building")
        return longest_data(data, short_args, launches.STEPS)

    short = launches.preflight_recipe(recipe, args.gradient_accumulation_steps)
    built = build(short, training_arguments(short), RunListener(), on_data=on_data)
    trainer = built.trainer
    for evaluator in built.answers:
        evaluator.after_training = True  # else it answers at the ends of a run alone
    PreflightWatch(book, trainer, evaluates=is_evaluated(recipe))
    output = Path(str(trainer.args.output_dir))
    if not saves:
        book.enter("loading")
        trainer.train(resume_from_checkpoint=str(output / "checkpoint-1"))
        return
    trainer.train()
    book.enter("final")
    gather_when_saved(trainer)
    trainer.save_model()
    trainer.accelerator.wait_for_everyone()  # all have written their share
    if args.process_index == 0:
        model = trainer.accelerator.unwrap_model(trainer.model)
        note_saved(book, output, model, merged_bytes=_merged_bytes(model) if recipe.adapter.merge else 0)


def note_saved(book: Notebook, output: Path, model: nn.Module, merged_bytes: int = 0) -> None:
    """The room that a checkpoint and the model in the end take. ``RuntimeError``: weights are missing in what was
    saved."""
    fault = saved_fault(output, whole_count(model, trained=True))
    if fault is not None:
        raise RuntimeError(fault)
    checkpoint = file_bytes((output / "checkpoint-1").rglob("*"))
    book.note(checkpoint_bytes=checkpoint, model_bytes=file_bytes(output.glob("*")), merged_bytes=merged_bytes)


def _facts(recipe: Recipe, args: SFTConfig | DPOConfig, data: SftData | PreferenceData) -> dict[str, Any]:
    given: Any = args
    plan = plan_output(recipe)
    saves = run_shapes(given, rows_of(data, given), args.world_size, at_end=recipe.evaluate.at_end).saves
    there = 0 if plan.replaces else len(checkpoints(plan.directory))  # of a run that continues
    return {"fingerprint": fingerprint_of(recipe, args, data), **run_facts(args, saves, there)}


def run_facts(args: TrainingArguments, saves: int | None, checkpoints_there: int) -> dict[str, Any]:
    on_gpu = args.device.type == "cuda"
    memory = torch.cuda.get_device_properties(args.device).total_memory if on_gpu else psutil.virtual_memory().total
    return {
        "device": torch.cuda.get_device_name(args.device) if on_gpu else args.device.type,
        "memory_bytes": int(memory),
        "saves": saves,
        "checkpoints_there": checkpoints_there,
        "save_total_limit": args.save_total_limit,
        "keeps_best": bool(args.load_best_model_at_end),
        "recipe_micro_batches": args.gradient_accumulation_steps,
    }


def _merged_bytes(model: nn.Module) -> int:
    """The base model in its own data type, a 4-bit weight counted as the numbers that it stands for."""
    width = getattr(getattr(getattr(model, "config", None), "dtype", None), "itemsize", 2)
    count: Any = getattr(model, "num_parameters", lambda: 0)
    return width * max(int(count()), whole_count(model, trained=False))
