"""Tensors in a word: equal words tell, in two processes, that every bit is the same.

The longest rows of a run's data, in the place of all: what its largest batches are made of.

Whether what was saved holds what was trained: engines can write a checkpoint whose tensors are empty.

An exception in a proof: what kind of failure it is, and what to write instead.

What a proof sees of its training, and when it lets it evaluate and save.

One process of a proof: in the first launch it trains, evaluates and saves; in the second it loads and goes on.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import numpy.typing as npt
import psutil
import torch
from safetensors import safe_open
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.stats import lengths, pair_lengths
from hf_efficient.errors import HfEfficientError, SetupError, first_line
from hf_efficient.launch.arguments import settle_compute_dtype, training_arguments
from hf_efficient.launch.build import Built, build
from hf_efficient.launch.checkpoints import checkpoints, replaced_by_a_run
from hf_efficient.launch.exits import cause_of
from hf_efficient.launch.listener import SilentListener
from hf_efficient.launch.output import locked, plan_output
from hf_efficient.launch.proven import fingerprint_of
from hf_efficient.launch.run import gather_when_saved
from hf_efficient.launch.started import launch_contradiction, started_recipe
from hf_efficient.planning.run_data import rows_of, run_shapes
from hf_efficient.preflight.launches import (
    STAGES,
    STEPS,
    Part,
    RankNotes,
    Stage,
    preflight_folder,
    proof_recipe,
    write_notes,
)
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recording.memory import peak_rss_bytes
from hf_efficient.records.account import FailureKind
from hf_efficient.records.plan import RunPlan

if TYPE_CHECKING:
    from transformers import Trainer
    from trl import DPOConfig, SFTConfig

_CHUNK = 1 << 20
"""Words at a time: eight times as many bytes are taken for a moment."""
_BITS = (1 << 64) - 1
_ODD, _OTHER = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9


def digest(tensor: torch.Tensor) -> str:
    """A tensor's type and shape, and a 64-bit sum over its words, each mixed with its place; computed where it lies.

    A sum of integers does not depend on the order in which it is taken. The mixing follows SplitMix64.
    """
    flat = tensor.detach().contiguous().reshape(-1)
    whole = flat.numel() * flat.element_size()
    words = flat.view(torch.int32 if whole % 4 == 0 else torch.uint8) if whole else flat.view(torch.uint8)
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK].to(torch.int64)
        chunk += torch.arange(start, start + chunk.numel(), device=chunk.device) * _ODD
        chunk ^= chunk >> 29
        chunk *= _OTHER
        chunk ^= chunk >> 32
        total += int(chunk.sum())
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} {total & _BITS:016x}"


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it: all, its share of a DTensor (FSDP2), or its partition of a parameter (ZeRO-3)."""
    partition = getattr(tensor, "ds_tensor", None)
    if partition is not None:
        return partition
    local = getattr(tensor, "to_local", None)
    return local() if callable(local) else tensor


def full_elements(tensor: torch.Tensor) -> int:
    """How many numbers all processes together hold of it."""
    return int(getattr(tensor, "ds_numel", tensor.numel()))


def weight_digests(model: nn.Module) -> dict[str, str]:
    """Of what is trained, by its name."""
    trained = ((name, held) for name, held in model.named_parameters() if held.requires_grad)
    return {name: digest(local_part(held)) for name, held in trained}


def optimizer_digests(optimizer: Any, model: nn.Module) -> dict[str, str]:
    """Of the state of an optimizer, under whatever accelerate or DeepSpeed have wrapped it in."""
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


ANSWERED_AT_ONCE = 8
"""Prompts that ``AnswerEvaluator`` answers together, per process."""


def longest_data(data: SftData | PreferenceData, args: SFTConfig | DPOConfig, steps: int) -> SftData | PreferenceData:
    """Data of so many optimizer steps and one evaluation batch, every one of them the longest on every process.

    The rows stay as they were prepared, so that the run's own collator makes the batch; read in their order, each
    micro-batch of each process holds the same rows.
    """
    world_size = args.world_size
    batches = args.gradient_accumulation_steps * world_size * steps
    train = _repeated(data.train, _lengths(data, args, "train"), args.per_device_train_batch_size, batches)
    evaluation = data.eval
    if evaluation is not None:
        held, rows = _lengths(data, args, "eval"), args.per_device_eval_batch_size
        # Of fewer rows than a batch has, several processes get full batches (accelerate begins again), one does not.
        evaluation = _repeated(evaluation, held, rows if world_size > 1 else min(rows, len(held)), world_size)
    if isinstance(data, PreferenceData):
        return replace(data, train=train, eval=evaluation)
    prompts = sorted(data.eval_examples, key=_prompt_length, reverse=True)[: ANSWERED_AT_ONCE * world_size]
    return replace(data, train=train, eval=evaluation, eval_examples=prompts)


def longest_rows(held: npt.NDArray[np.int64], count: int) -> list[int]:
    """Indices of the ``count`` longest rows, the longest first; from the first one again where there are fewer."""
    longest = np.argsort(-held, kind="stable")[:count].tolist()
    return list(islice(cycle(longest), count))


def _repeated(dataset: datasets.Dataset, held: npt.NDArray[np.int64], rows: int, batches: int) -> datasets.Dataset:
    return dataset.select(longest_rows(held, rows) * batches)


def _lengths(data: SftData | PreferenceData, args: SFTConfig | DPOConfig, name: str) -> npt.NDArray[np.int64]:
    dataset = data.train if name == "train" else data.eval
    assert dataset is not None
    if isinstance(data, PreferenceData):
        return pair_lengths(dataset, args.max_length).max(axis=1)
    return lengths(dataset)


def _prompt_length(example: dict[str, Any]) -> int:
    return len(json.dumps(example["prompt"]))


def saved_fault(folder: Path, trained_elements: int) -> str | None:
    """What is wrong with the weights in a folder that a run would leave in the end; None where nothing is."""
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


def folder_bytes(folder: Path, *, deep: bool = True) -> int:
    """Of all files in it."""
    found = folder.rglob("*") if deep else folder.glob("*")
    return sum(path.stat().st_size for path in found if path.is_file())


_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY", re.I)
_BEFORE_TRAINING = ("starting", "data", "building")
_FULL_DISK = re.compile(r"No space left on device|os error 28|unexpected pos|Disk quota exceeded")


def describe_failure(
    error: Exception, notes: RankNotes, recipe: Recipe, args: SFTConfig | DPOConfig | None
) -> tuple[FailureKind, str]:
    """Kind and message."""
    if is_out_of_memory(error):
        return "memory", _out_of_memory(error, notes, recipe, args)
    if isinstance(error, HfEfficientError):
        return ("input" if notes.stage in _BEFORE_TRAINING else "fault"), str(error)
    if isinstance(error, ImportError):
        return "input", f"a package that the recipe needs is missing: {first_line(error)}"
    told = f"{STAGES[notes.stage]}: {type(error).__name__}: {first_line(error)}"
    if notes.stage in ("saving", "final"):
        return "save", f"{told}. {_save_remedy(error, recipe)}"
    if notes.stage == "loading":
        return "load", (
            f"{told}. The checkpoint was saved, and a run could not go on from it: it would be lost with the first "
            "interruption. Write another distributed.strategy, or, to train without, train.save_only_model=true."
        )
    return "fault", told


def is_out_of_memory(error: BaseException) -> bool:
    """Of a device or of the host."""
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and _NO_MEMORY.search(str(error)) is not None


def _save_remedy(error: Exception, recipe: Recipe) -> str:
    if _FULL_DISK.search(str(error)):
        return f"No room is left for {recipe.output_dir}: make room, or write an output_dir=... on another disk."
    if isinstance(error, PermissionError):
        return f"{recipe.output_dir} cannot be written by this user: write another output_dir=..."
    return "The run would train and keep nothing. Write another distributed.strategy, or another output_dir=..."


def _out_of_memory(error: Exception, notes: RankNotes, recipe: Recipe, args: SFTConfig | DPOConfig | None) -> str:
    told = f"out of memory in {STAGES[notes.stage]}"
    shape = notes.figures
    if notes.stage in ("training", "next") and "batch_rows" in shape:
        told += f" ({shape['batch_rows']} x {shape['batch_tokens']:,} tokens)"
    return f"{told}: {first_line(error)} {_memory_remedy(notes, recipe, args)}"


def _memory_remedy(notes: RankNotes, recipe: Recipe, args: SFTConfig | DPOConfig | None) -> str:
    smaller = "adapter.method=qlora" if recipe.adapter.method != "qlora" else "a smaller model.id"
    spread = "distributed.strategy=fsdp2 or zero3 over more processes"
    if args is None or notes.stage in _BEFORE_TRAINING:
        return f"The model itself does not fit. Write {smaller}, or {spread}."
    if notes.stage == "evaluation":
        return _evaluation_remedy(recipe, args)
    if notes.stage in ("saving", "final", "loading"):
        return f"The weights are gathered for it. Write {spread} with less on each, or give the host more memory."
    rows = args.per_device_train_batch_size
    ways = []
    if rows > 1:
        fewer = rows // 2
        more = args.gradient_accumulation_steps * rows // fewer
        ways.append(f"train.per_device_train_batch_size={fewer} train.gradient_accumulation_steps={more}")
    if not args.gradient_checkpointing:
        ways.append("train.gradient_checkpointing=true")
    length = "" if args.max_length is None else f" (is {args.max_length:,})"
    ways += [f"a smaller train.max_length{length}", smaller, spread]
    return f"Write one of: {'; '.join(ways)}."


def _evaluation_remedy(recipe: Recipe, args: SFTConfig | DPOConfig) -> str:
    rows = args.per_device_eval_batch_size
    ways = [f"train.per_device_eval_batch_size={rows // 2}"] if rows > 1 else []
    if recipe.evaluate.metrics:
        ways.append(f"fewer evaluate.metrics (are {', '.join(recipe.evaluate.metrics)})")
    if recipe.evaluate.generate.show or "exact_match" in recipe.evaluate.metrics:
        ways.append(f"a smaller evaluate.generate.max_new_tokens (is {recipe.evaluate.generate.max_new_tokens})")
    ways.append("a smaller train.max_length")
    return f"The run would have lost its steps up to there. Write one of: {'; '.join(ways)}."


class ProofWatch(TrainerCallback):
    """Step 1, an evaluation, a save, step 2; or a loaded checkpoint and step 2."""

    def __init__(self, part: Part, notes: RankNotes, enter: Callable[[Stage], None], *, evaluates: bool) -> None:
        self._part, self._notes, self._enter, self._evaluates = part, notes, enter, evaluates
        self._trainer: Trainer | None = None
        self._mark = time.monotonic()

    def watch(self, trainer: Trainer) -> None:
        """Watch this one from here on."""
        self._trainer = trainer
        trainer.add_callback(self)
        step = trainer.training_step

        def noted(model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            if "batch_rows" not in self._notes.figures:
                self._note(_shape(inputs))
            loss = step(model, inputs, *args, **kwargs)
            self._notes.losses.append(float(loss))
            return loss

        trainer.training_step = noted  # type: ignore[method-assign]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Model, optimizer and, in the second launch, the checkpoint are where they belong."""
        if self._part == "load":
            self._note({"load_seconds": self._lap()})
            self._take_digests()
            self._enter("next")
        else:
            self._enter("training")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """After the first step: evaluate, save; after the second: nothing more."""
        if self._part == "load":
            return
        self._note_peak(args, "training_peak_bytes")
        if state.global_step != 1:
            return
        control.should_evaluate, control.should_save = self._evaluates, True
        self._enter("evaluation" if self._evaluates else "saving")
        self._lap()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The answers, too, are generated."""
        rows: Any = None if self._trainer is None else self._trainer.eval_dataset
        if rows is not None:
            self._note({"evaluation_rows": len(rows) // args.world_size})
        if args.device.type == "cuda":  # a process's peak on the host does not tell the two apart
            self._note_peak(args, "evaluation_peak_bytes")
        self._enter("saving")
        self._lap()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """What the checkpoint holds must be what is here now."""
        self._note({"save_seconds": self._lap()})
        self._take_digests()
        _reset_peak(args.device)
        self._enter("next")

    def begin_loading(self) -> None:
        """The next thing is the checkpoint."""
        self._enter("loading")
        self._lap()

    def _take_digests(self) -> None:
        assert self._trainer is not None
        model: Any = self._trainer.model
        self._notes.weights = weight_digests(model)
        self._notes.optimizer = optimizer_digests(self._trainer.optimizer, model)

    def _note_peak(self, args: TrainingArguments, name: str) -> None:
        cuda = args.device.type == "cuda"
        peak = int(torch.cuda.max_memory_allocated(args.device)) if cuda else peak_rss_bytes()
        if peak is not None:
            self._note({name: max(peak, self._notes.figures.get(name, 0))})
        _reset_peak(args.device)

    def _note(self, figures: Mapping[str, Any]) -> None:
        self._notes.figures.update(figures)

    def _lap(self) -> float:
        now = time.monotonic()
        elapsed, self._mark = now - self._mark, now
        return elapsed


def _shape(inputs: Mapping[str, Any]) -> dict[str, int]:
    ids = inputs.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        return {}
    return {"batch_rows": int(ids.shape[0]), "batch_tokens": int(ids.shape[1])}


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def prove_part(recipe: Recipe, part: Part) -> None:
    """Do this process's share of a proof, and leave notes in the folder of the proof."""
    process = _Process(recipe, part)
    process.enter("starting")
    try:
        process.prove()
    except BaseException as raised:
        error = cause_of(raised)
        if not isinstance(error, Exception):
            raise
        notes = process.notes
        notes.kind, notes.message = describe_failure(error, notes, recipe, process.args)
        notes.exit_code = 2 if notes.kind == "input" else 1
        if notes.kind == "save":  # a full disk then has room for the notes
            shutil.rmtree(process.folder / "run", ignore_errors=True)
        process.write()
        if error is raised:
            raise
        raise error from raised


class _Process:
    def __init__(self, recipe: Recipe, part: Part) -> None:
        self.recipe, self.part = recipe, part
        self.folder = preflight_folder(recipe)
        self.notes = RankNotes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self.args: SFTConfig | DPOConfig | None = None

    def write(self) -> None:
        write_notes(self.folder, self.part, self.notes)

    def enter(self, stage: Stage) -> None:
        self.notes.stage = stage
        self.write()

    def prove(self) -> None:
        self.recipe = recipe = started_recipe(self.recipe, os.environ)
        self.args = args = training_arguments(recipe)
        self.recipe = recipe = settle_compute_dtype(recipe, args.device)
        contradiction = launch_contradiction(recipe, args.world_size)
        if contradiction:
            raise SetupError(contradiction)
        short = proof_recipe(recipe, args.gradient_accumulation_steps)
        is_main = args.process_index == 0
        with locked(Path(recipe.output_dir).expanduser()) if is_main else nullcontext():
            self.enter("data")
            if is_main and self.part == "save":
                self._note(free_bytes=shutil.disk_usage(self.folder).free + _freed(recipe))
            built = build(short, training_arguments(short), SilentListener(), on_data=self._on_data)
            watch = ProofWatch(self.part, self.notes, self.enter, evaluates=_evaluates(recipe, args, built.trainer))
            watch.watch(built.trainer)
            self._train(built, watch)
        self.enter("done")
        args.distributed_state.destroy_process_group()

    def _on_data(
        self, data: SftData | PreferenceData, args: SFTConfig | DPOConfig, plan: RunPlan | None
    ) -> SftData | PreferenceData:
        real: Any = self.args
        if self.part == "save" and real.process_index == 0:
            shapes = run_shapes(real, rows_of(data, real), real.world_size, at_end=self.recipe.evaluate.at_end)
            self._note(
                fingerprint=fingerprint_of(self.recipe, real, data),
                device=_device_name(real),
                memory_bytes=_memory_bytes(real),
                saves=shapes.saves,
                checkpoints_there=_there(self.recipe),
                save_total_limit=real.save_total_limit,
                keeps_best=bool(real.load_best_model_at_end),
                micro_batches=args.gradient_accumulation_steps,
                recipe_micro_batches=real.gradient_accumulation_steps,
            )
        self.enter("building")
        return longest_data(data, args, STEPS)

    def _train(self, built: Built, watch: ProofWatch) -> None:
        trainer = built.trainer
        for evaluator in built.answers:
            evaluator.after_training = True  # else it answers at the ends of a run alone
        if self.part == "load":
            watch.begin_loading()
            trainer.train(resume_from_checkpoint=str(self._output(trainer) / "checkpoint-1"))
            return
        trainer.train()
        self.enter("final")
        gather_when_saved(trainer)
        trainer.save_model()
        trainer.accelerator.wait_for_everyone()  # all have written their share
        if trainer.args.process_index == 0:
            self._look_at_saved(trainer)

    def _look_at_saved(self, trainer: Trainer) -> None:
        output, model = self._output(trainer), trainer.accelerator.unwrap_model(trainer.model)
        trained = sum(full_elements(one) for one in model.parameters() if one.requires_grad)
        fault = saved_fault(output, trained)
        if fault is not None:
            raise RuntimeError(fault)
        self._note(
            checkpoint_bytes=folder_bytes(output / "checkpoint-1"),
            model_bytes=folder_bytes(output, deep=False),
            merged_bytes=_merged_bytes(model) if self.recipe.adapter.merge else 0,
        )

    def _output(self, trainer: Trainer) -> Path:
        return Path(str(trainer.args.output_dir))

    def _note(self, **figures: Any) -> None:
        self.notes.figures.update(figures)


def _evaluates(recipe: Recipe, args: SFTConfig | DPOConfig, trainer: Trainer) -> bool:
    if trainer.eval_dataset is None:
        return False
    strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
    return recipe.evaluate.at_end or bool(args.eval_on_start) or strategy != "no"


def _there(recipe: Recipe) -> int:
    """Checkpoints of the run that goes on."""
    plan = plan_output(recipe)
    return 0 if plan.replaces else len(checkpoints(plan.directory))


def _freed(recipe: Recipe) -> int:
    """Bytes of a run that this one will replace, before it writes anything."""
    plan = plan_output(recipe)
    if not plan.replaces:
        return 0
    found = replaced_by_a_run(plan.directory)
    return sum(folder_bytes(path) if path.is_dir() else path.stat().st_size for path in found)


def _merged_bytes(model: nn.Module) -> int:
    """The base model in its own data type, a 4-bit weight counted as the numbers that it stands for."""
    config: Any = getattr(model, "config", None)
    dtype = getattr(config, "dtype", None)
    width = getattr(dtype, "itemsize", 2)
    count: Any = getattr(model, "num_parameters", lambda: 0)
    return width * max(int(count()), sum(full_elements(one) for one in model.parameters()))


def _memory_bytes(args: SFTConfig | DPOConfig) -> int:
    if args.device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(args.device).total_memory)
    return int(psutil.virtual_memory().total)


def _device_name(args: SFTConfig | DPOConfig) -> str:
    if args.device.type == "cuda":
        import torch

        return str(torch.cuda.get_device_name(args.device))
    return str(args.device.type)
