"""Which process did which ``train()`` call.

The ``train()`` calls of a process.

What it took to go on after a process of the run had ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.steps import RankSteps, SegmentSteps
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.records.account import ProcessAccount, RestartAccount, TrainingAccount


def segments_of(process: ProcessSpans, rank: RankSteps, lived: Sequence[ProcessSpans]) -> list[SegmentSteps]:
    """The ``train()`` calls of a process.

    One that no process tells of, since its line is broken or not written yet, belongs to the last process without any
    that lies between those of the calls before and after it, or to that of the call before.
    """
    owners = {segment: index for index, one in enumerate(lived) for segment in one.trains}
    at = next(index for index, one in enumerate(lived) if one is process)
    return [segment for segment in rank.segments if _owner(segment.segment, owners, lived) == at]


def _owner(segment: int, owners: Mapping[int, int], lived: Sequence[ProcessSpans]) -> int:
    if segment in owners:
        return owners[segment]
    before = max((index for known, index in owners.items() if known < segment), default=0)
    after = min((index for known, index in owners.items() if known > segment), default=len(lived))
    return max((index for index in range(before, after) if not lived[index].trains), default=before)


def trainings_of(
    process: ProcessSpans, segments: Sequence[SegmentSteps], *, last_sign_at_seconds: float, died: bool
) -> list[TrainingAccount]:
    """Each by itself, in the order in which they were called; none of records that tell no times of calls.

    Args:
        process: as its spans tell it.
        segments: of its steps.
        last_sign_at_seconds: until when it is known to have lived.
        died: whether it left no end.
    """
    if process.start_from == "records":
        return []
    steps = {one.segment: one for one in segments}
    last = max(process.trains, key=lambda segment: process.trains[segment], default=None)
    found = []
    for segment, called in sorted(process.trains.items(), key=lambda item: item[1]):
        done = steps.get(segment, SegmentSteps(segment))
        end = process.train_ends.get(segment)
        if end is None and died and segment == last:
            end = {"at_seconds": last_sign_at_seconds, "ended": "died", "error": None}
        found.append(_training(called, done, end))
    return found


def _training(called: float, done: SegmentSteps, end: dict[str, Any] | None) -> TrainingAccount:
    wall = done.last_ends_at_seconds if end is None else end["at_seconds"] - called
    return TrainingAccount(
        segment=done.segment,
        called_at_seconds=round(called, 9),
        wall_seconds=round(wall, 9),
        steps=done.steps,
        first_step=done.first_step,
        last_step=done.last_step,
        time_to_first_step_seconds=round(done.first_ends_at_seconds, 9) if done.steps else None,
        ended=None if end is None else end["ended"],
        error=None if end is None else end["error"],
    )


def restarts_of(
    lived: Sequence[ProcessSpans], accounts: Sequence[ProcessAccount], segments: Sequence[SegmentSteps]
) -> list[RestartAccount]:
    """Each process after the first, against what had been done before it.

    Args:
        lived: the processes of rank 0, as their spans tell them.
        accounts: the same, in the same order, with their time.
        segments: the ``train()`` calls of all of them.
    """
    found = []
    before: list[SegmentSteps] = []
    for process, account in zip(lived, accounts, strict=True):
        own = [segment for segment in segments if segment.segment in process.trains and segment.steps]
        if account is not accounts[0]:
            found.append(_restart(process, account, before, own[0] if own else None))
        before += own
    return found


def _restart(
    process: ProcessSpans, account: ProcessAccount, before: Sequence[SegmentSteps], first: SegmentSteps | None
) -> RestartAccount:
    last = before[-1].last_step if before else None
    start_seconds = account.wall_seconds
    resumed, again, seconds = None, 0, 0.0
    if first is not None and first.first_step is not None:
        resumed = first.first_step - 1
        start_seconds = process.called_at_seconds(first.segment) - account.began_at_seconds
        start_seconds += first.first_ends_at_seconds - (first.step_seconds[0] if first.step_seconds else 0.0)
        again, seconds = _done_again(before, resumed)
    price = process.facts.get("price", {}).get("price_usd_per_hour")
    return RestartAccount(
        process=account.process,
        last_step_before=last,
        resumed_after_step=resumed,
        steps_again=again,
        seconds_again=round(seconds, 9),
        start_seconds=round(start_seconds, 9),
        cost_usd=cost_usd(seconds + start_seconds, price),
    )


def _done_again(before: Sequence[SegmentSteps], resumed_after: int) -> tuple[int, float]:
    """Steps beyond that one which the last call before had done, and their time."""
    if not before or before[-1].last_step is None:
        return 0, 0.0
    steps = min(max(0, before[-1].last_step - resumed_after), before[-1].steps)
    return steps, math.fsum(before[-1].step_seconds[-steps:]) if steps else 0.0
