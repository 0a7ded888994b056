"""Evaluations and saves of ranks that train together: who the others wait for."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.ranks import SlowRank, common_rows, slowest_share, usual_of_others

__all__ = ["slow_in_pause"]

_FEWEST = 2
_STANDS_OUT = 0.15
_ALONE = 0.5


def slow_in_pause(case: Case, phase: str) -> SlowRank | None:
    """The rank with the most time of its own in evaluations, or in saves.

    None where fewer than two are recorded of all ranks, or none takes a seventh longer than the others. That rank 0
    alone saves is no slowness, where the others hardly save at all: what its saves take is told by their own rule.

    Args:
        case: the run.
        phase: of ``PAUSES``.
    """
    held = {rank: columns for rank, columns in sorted(case.steps.items()) if len(columns)}
    if len(held) < 2:
        return None
    rows = common_rows({rank: columns.phase(phase) > 0 for rank, columns in held.items()}, held)
    own = {rank: columns.own(phase)[rows[rank]] for rank, columns in held.items()}
    count = len(next(iter(own.values())))
    if count < _FEWEST:
        return None
    excess = {rank: own[rank] - usual_of_others(own, rank) for rank in own}
    medians = {rank: float(np.median(of)) for rank, of in own.items()}
    slow = max(excess, key=lambda rank: float(np.median(excess[rank])))
    extra, usual = float(np.median(excess[slow])), float(np.median(usual_of_others(own, slow)))
    if extra < _STANDS_OUT * usual:
        return None
    if phase == "checkpointing" and slow == 0 and usual < _ALONE * medians[slow]:
        return None
    share = slowest_share(own, slow)
    return SlowRank(slow, medians, phase, medians, extra, share, {}, on_device=False, pauses=count)
