"""What it took to go on after a process of the run had ended."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.steps import SegmentSteps
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.records import ProcessAccount, RestartAccount

__all__ = ["restarts_of"]


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
