"""The notes of all processes to what was proven, or why not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hf_efficient.estimate.disk import checkpoints_at_once, disk_needed
from hf_efficient.launch.preflight.notes import STAGES, RankNotes
from hf_efficient.records.preflight import Preflight, PreflightFailure
from hf_efficient.units import size

__all__ = ["LOSS_TOLERANCE", "differing", "disk_failure", "figures_of"]

LOSS_TOLERANCE = 1e-3
"""Relative: kernels of a GPU may add in another order; random numbers or weights that were lost change it by more."""

_LARGEST = (
    "training_peak_bytes", "evaluation_peak_bytes", "save_seconds", "load_seconds", "batch_rows", "batch_tokens",
)  # fmt: skip
_MOST_NAMED = 5


def figures_of(saved: Sequence[RankNotes], loaded: Sequence[RankNotes] = ()) -> dict[str, Any]:
    """What ``Preflight`` holds, by its names there, as far as the notes tell it.

    Args:
        saved: of the first launch.
        loaded: of the second.
    """
    told: dict[str, Any] = {"world_size": saved[0].world_size} if saved else {}
    for notes in [*loaded, *saved][::-1]:
        for name, value in notes.figures.items():
            told[name] = max(told[name], value) if name in _LARGEST and name in told else told.get(name, value)
    if "saves" in told:
        keeps_best, there = told["keeps_best"], told["checkpoints_there"]
        told["checkpoints_to_come"] = checkpoints_at_once(
            told["saves"], told["save_total_limit"], keeps_best=keeps_best, there=there
        )
        if "checkpoint_bytes" in told:
            told["needed_bytes"] = disk_needed(
                told["checkpoints_to_come"], told["checkpoint_bytes"], told["model_bytes"], told["merged_bytes"]
            )
    told["next_loss"] = _next_loss(saved, told.get("micro_batches"), second=True)
    if loaded:
        told["next_loss_after_load"] = _next_loss(loaded, told.get("micro_batches"), second=False)
        told["compared_tensors"] = sum(len(one.weights) + len(one.optimizer) for one in saved)
    known = {one.name for one in fields(Preflight)}
    return {name: value for name, value in told.items() if name in known}


def disk_failure(figures: Mapping[str, Any]) -> PreflightFailure | None:
    """Whether all checkpoints to come have room.

    Args:
        figures: of ``figures_of``.
    """
    needed, free = figures.get("needed_bytes"), figures.get("free_bytes")
    if needed is None or free is None or needed <= free:
        return None
    to_come = figures["checkpoints_to_come"]
    return PreflightFailure(
        "disk",
        "the disk",
        f"the disk is too small: {to_come} checkpoints of {size(figures['checkpoint_bytes'])} and the model in the end "
        f"need {size(needed)}, and {size(free)} are free. Write train.save_total_limit=1, a larger train.save_steps, "
        "or an output_dir=... on another disk.",
    )


def differing(saved: Sequence[RankNotes], loaded: Sequence[RankNotes]) -> PreflightFailure | None:
    """Whether what was loaded is what was saved, and goes on alike.

    Args:
        saved: of the first launch, all ranks.
        loaded: of the second.
    """
    after = {one.rank: one for one in loaded}
    for one in saved:
        other = after.get(one.rank)
        if other is None:
            return _differs(f"rank {one.rank} was not there when it was loaded back", one.rank)
        for kind, was, now in (
            ("the weights", one.weights, other.weights),
            ("the optimizer's state", one.optimizer, other.optimizer),
        ):
            wrong = list(_unequal(was, now))
            if wrong:
                named = ", ".join(wrong[:_MOST_NAMED]) + (", ..." if len(wrong) > _MOST_NAMED else "")
                told = f"{len(wrong)} of {len(was)} tensors of {kind} are not what was saved"
                return _differs(f"{told} (rank {one.rank}: {named})", one.rank)
        steps = list(zip(one.losses[-len(other.losses) :], other.losses, strict=False)) if other.losses else []
        for was_loss, now_loss in steps:
            if not math.isclose(was_loss, now_loss, rel_tol=LOSS_TOLERANCE) and was_loss == was_loss:
                told = (
                    f"the loss of the next step is {now_loss:.6g} in place of {was_loss:.6g} (rank {one.rank}), though"
                )
                return _differs(
                    f"{told} weights and optimizer are equal: the frozen weights or the random state", one.rank
                )
    return None


def _differs(what: str, rank: int) -> PreflightFailure:
    return PreflightFailure(
        "differs",
        STAGES["loading"],
        f"a run that goes on from a checkpoint would not go on as it was: {what}. Do not count on --resume with this "
        "recipe: write another distributed.strategy, or another train.optim.",
        rank,
    )


def _unequal(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    yield from (name for name in was if was[name] != now.get(name))
    yield from (f"{name} (not saved)" for name in now if name not in was)


def _next_loss(notes: Sequence[RankNotes], micro_batches: int | None, *, second: bool) -> float | None:
    """Mean over the ranks of the last step's loss: the Trainer scales those of its micro-batches to be added."""
    steps = 2 if second else 1
    whole = [one.losses for one in notes if micro_batches and len(one.losses) == steps * micro_batches]
    if not whole or not micro_batches or len(whole) < len(notes):
        return None
    loss = math.fsum(math.fsum(losses[-micro_batches:]) for losses in whole) / len(whole)
    return loss if math.isfinite(loss) else None
