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
from transformers import Trainer

from hf_efficient.errors import PreflightError, SetupError
from hf_efficient.planning import own_trainer as own
from hf_efficient.planning.arguments import two_steps
from hf_efficient.preflight.launches import STAGES, STEPS, disk_failure, figures_of
from hf_efficient.preflight.process import Notebook, PreflightWatch, describe_failure, note_saved, run_facts
from hf_efficient.recording.activations import kept_modes, kept_random_state
from hf_efficient.records.account import Preflight, PreflightFailure
from hf_efficient.reporting.run_rows import preflight_words
from hf_efficient.run_dir.checkpoints import checkpoints
from hf_efficient.run_dir.json_file import folder_of_its_own

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
    raised: Exception | None = None
    with folder_of_its_own(Path(str(trainer.args.output_dir)).expanduser() / ".preflight") as folder:
        book = Notebook(folder, "save")
        try:
            with _as_it_was(trainer):
                _try_out(trainer, book)
        except Exception as error:  # noqa: BLE001  the user's code may raise anything
            raised = error
    figures = figures_of([book.notes])
    failure = disk_failure(figures, keys="")
    if raised is not None:
        kind, message = describe_failure(raised, book.notes, None, trainer.args)
        failure = PreflightFailure(kind, STAGES[book.notes.stage], message)
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
