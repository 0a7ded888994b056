"""A preflight check of a Trainer that never saw a recipe: its longest batch, an evaluation, a save, the disk."""

import copy
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.state import GradientState
from transformers import Trainer, TrainingArguments

from hf_efficient.callbacks.shrink import is_out_of_memory
from hf_efficient.errors import HfEfficientError, PreflightError, SetupError, first_line, writing
from hf_efficient.launch.checkpoints import remove
from hf_efficient.planning import own_trainer as own
from hf_efficient.planning.arguments import two_steps
from hf_efficient.preflight.launches import STAGES, STEPS, disk_failure, figures_of
from hf_efficient.preflight.process import Notebook, PreflightWatch, note_saved, run_facts
from hf_efficient.recording.activations import kept_modes, kept_random_state
from hf_efficient.records.account import Preflight, PreflightFailure
from hf_efficient.reporting.run_rows import preflight_words
from hf_efficient.run_dir.checkpoints import checkpoints

_ALONE = ("deepspeed", "fsdp")


def preflight_check(trainer: Trainer) -> Preflight:
    """Try two steps on the longest batch, an evaluation, a save and the disk, before ``trainer.train()``.

    A copy of the trainer with its own class, loss, collator and arguments trains the same model, without callbacks.
    Weights, buffers, random generators and the output directory are as before afterwards. What was checked is printed.

    Raises:
        PreflightError: the run would fail; says where, and what to write.
        SetupError: a trainer that cannot be checked: it has trained, or it trains in several processes.
    """
    _check_kind(trainer)
    began = time.monotonic()
    folder = Path(str(trainer.args.output_dir)).expanduser() / ".preflight"
    remove(folder)  # of one that was killed
    with writing("output_dir", folder):
        folder.mkdir(parents=True)
    book = Notebook(folder, "save")
    raised: Exception | None = None
    try:
        with _as_it_was(trainer):
            _try_out(trainer, book)
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        raised = error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = figures_of([book.notes])
    failure = disk_failure(figures, keys="") if raised is None else _failure(raised, book, trainer.args)
    took = time.monotonic() - began
    found = Preflight(fingerprint="", passed=failure is None, wall_seconds=took, failure=failure, **figures)
    print("\n".join(["Preflight check", *(f"  {line}" for line in preflight_words(found))]))
    if failure is not None:
        raise PreflightError(f"preflight_check: {failure.message}") from raised
    return found


def _check_kind(trainer: Trainer) -> None:
    if not isinstance(trainer, Trainer):
        raise SetupError(f"preflight_check: takes a Trainer, not {type(trainer).__name__}.")
    own.check_untrained(trainer, "preflight_check")
    several = next((name for name in _ALONE if getattr(trainer.args, name, None)), None)
    if several is not None or trainer.args.world_size > 1:
        what = several or f"{trainer.args.world_size} processes"
        raise SetupError(f"preflight_check: is for one process without {what}. Check a recipe: train --preflight-only.")


@contextmanager
def _as_it_was(trainer: Trainer) -> Iterator[None]:
    """Afterwards model, random generators and accelerate's shared state are what they were. Trained weights and buffers
    are kept in host memory meanwhile."""
    model: Any = trainer.model
    tensors = [one for one in model.parameters() if one.requires_grad] + list(model.buffers())
    held = [one.detach().to("cpu", copy=True) for one in tensors]
    shared, attributes = dict(GradientState._shared_state), dict(vars(model))
    with kept_random_state(trainer.args.device), kept_modes(model):
        try:
            yield
        finally:
            vars(model).clear()  # accelerate puts in a forward for mixed precision, and that it did
            vars(model).update(attributes)
            with torch.no_grad():
                for one, before in zip(tensors, held, strict=True):
                    one.copy_(before)
            model.zero_grad(set_to_none=True)
            GradientState._shared_state.clear()
            GradientState._shared_state.update(shared)
            if trainer.args.device.type == "cuda":
                torch.cuda.empty_cache()


def _try_out(trainer: Trainer, book: Notebook) -> None:
    args = trainer.args
    book.enter("data")
    there = len(checkpoints(Path(str(args.output_dir)).expanduser()))
    book.note(free_bytes=shutil.disk_usage(book.folder).free, **run_facts(args, own.saves_of(trainer), there))
    book.enter("building")
    made = _copy(trainer, book.folder / "run")
    PreflightWatch(book, made, evaluates=made.eval_dataset is not None)
    made.train()
    book.enter("final")
    made.save_model()
    note_saved(book, Path(str(made.args.output_dir)), made.model)
    book.note(micro_batches=made.args.gradient_accumulation_steps)
    book.enter("done")


def _copy(trainer: Trainer, directory: Path) -> Any:
    elsewhere = {"report_to": [], "disable_tqdm": True, "push_to_hub": False, "output_dir": str(directory)}
    args = two_steps(trainer.args, **elsewhere, resume_from_checkpoint=None, save_total_limit=None)
    made = own.untrained_copy(trainer, own.OwnSteps, args, trainer.model)
    # The optimizer of the user's, with its own state and the same parameters.
    made.optimizer = copy.deepcopy(trainer.optimizer, {id(one): one for one in made.model.parameters()})
    rows = made.args.per_device_train_batch_size
    count = STEPS * made.args.gradient_accumulation_steps * rows
    lengths = own.row_lengths(trainer, trainer.train_dataset, "train_dataset")
    made.train_dataset = list(own.batch_rows(trainer.train_dataset, lengths, 1, count))
    made.eval_dataset = _longest_evaluation(trainer)
    made.create_accelerator_and_postprocess()
    return made


def _longest_evaluation(trainer: Trainer) -> list[Any] | None:
    held = own.evaluation_data(trainer)
    if held is None or trainer.args.eval_strategy == "no":
        return None
    rows = min(trainer.args.per_device_eval_batch_size, len(held))
    return list(own.batch_rows(held, own.row_lengths(trainer, held, "eval_dataset"), 1, rows))


def _failure(error: Exception, book: Notebook, args: TrainingArguments) -> PreflightFailure:
    stage, figures = book.notes.stage, book.notes.figures
    where = STAGES[stage]
    if is_out_of_memory(error):
        shape = f" ({figures['batch_rows']} x {figures['batch_tokens']:,} tokens)" if "batch_rows" in figures else ""
        ways = ["a smaller max_length"]
        name = "per_device_eval_batch_size" if stage == "evaluation" else "per_device_train_batch_size"
        if getattr(args, name) > 1:
            ways.insert(0, f"{name}={getattr(args, name) // 2}")
        if not args.gradient_checkpointing:
            ways.append("gradient_checkpointing=True")
        message = f"out of memory in {where}{shape}: {first_line(error)} Write one of: {'; '.join(ways)}."
        return PreflightFailure("memory", where, message)
    said = str(error) if isinstance(error, HfEfficientError) else f"{type(error).__name__}: {first_line(error)}"
    kind = "save" if stage in ("saving", "final") else "fault"
    return PreflightFailure(kind, where, f"{where}: {said}")  # type: ignore[arg-type]
