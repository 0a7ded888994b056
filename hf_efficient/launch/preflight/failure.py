"""An exception in a proof: what kind of failure it is, and what to write instead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.launch.preflight.notes import STAGES, RankNotes
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.preflight import FailureKind

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig

__all__ = ["describe_failure", "is_out_of_memory"]

_NO_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory|CUDA_ERROR_OUT_OF_MEMORY", re.I)
_BEFORE_TRAINING = ("starting", "data", "building")
_FULL_DISK = re.compile(r"No space left on device|os error 28|unexpected pos|Disk quota exceeded")


def describe_failure(
    error: Exception, notes: RankNotes, recipe: Recipe, args: SFTConfig | DPOConfig | None
) -> tuple[FailureKind, str]:
    """Kind and message.

    Args:
        error: that ended a process.
        notes: of that process.
        recipe: of the run.
        args: of the run; None where it did not come to them.
    """
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
