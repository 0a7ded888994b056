"""What was proven before a run, in lines."""

from __future__ import annotations

from hf_efficient.records.preflight import Preflight
from hf_efficient.units import count, seconds, short_seconds, size

__all__ = ["preflight_words"]


def preflight_words(found: Preflight) -> list[str]:
    """As far as it came: memory; save and load; disk; and how it went.

    Args:
        found: of the run.
    """
    lines = [_memory(found), _saved(found), _disk(found)]
    took = f"in {seconds(found.wall_seconds)}"
    how = f"passed {took}" if found.failure is None else f"failed {took}, in {found.failure.stage}"
    return [*(line for line in lines if line), how]


def _memory(found: Preflight) -> str:
    if found.batch_rows is None or found.training_peak_bytes is None:
        return ""
    told = f"longest batch {found.batch_rows} x {count(found.batch_tokens or 0)} tokens"
    if found.micro_batches is not None and found.micro_batches != found.recipe_micro_batches:
        told += f" ({found.micro_batches} of {found.recipe_micro_batches} micro-batches a step)"
    told += f": peak {size(found.training_peak_bytes)}"
    if found.memory_bytes is not None:
        told += f" of {size(found.memory_bytes)}"
    if found.evaluation_rows is not None:
        told += f"; {found.evaluation_rows} rows evaluated"
    if found.evaluation_peak_bytes is not None:
        told += f": peak {size(found.evaluation_peak_bytes)}"
    return told


def _saved(found: Preflight) -> str:
    if found.checkpoint_bytes is None or found.save_seconds is None:
        return ""
    told = f"saved {size(found.checkpoint_bytes)} in {short_seconds(found.save_seconds)}"
    if found.load_seconds is None:
        return told if found.failure else f"{told}; not loaded back: train.save_only_model keeps no optimizer"
    told += f", loaded back in {short_seconds(found.load_seconds)}"
    return told if found.failure else f"{told}: {_equal(found)}"


def _equal(found: Preflight) -> str:
    told = f"{found.compared_tensors} tensors of weights and optimizer are equal"
    if found.next_loss is None or found.next_loss_after_load is None:
        return told
    if found.next_loss == found.next_loss_after_load:
        return f"{told}, and the next loss, {found.next_loss:.4g}, bit for bit"
    return f"{told}; the next loss is {found.next_loss_after_load:.9g}, it was {found.next_loss:.9g}"


def _disk(found: Preflight) -> str:
    if found.needed_bytes is None or found.free_bytes is None:
        return ""
    to_come = f"{found.checkpoints_to_come} checkpoint{'' if found.checkpoints_to_come == 1 else 's'} to come"
    return f"{to_come} and the model need {size(found.needed_bytes)}, {size(found.free_bytes)} are free"
