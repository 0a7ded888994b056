"""Runs against each other: what changed between them, each figure with its spread, and the regressions."""

from dataclasses import dataclass
from typing import Literal

Method = Literal["paired_steps", "steps", "rounds", "runs"]
"""How a figure's spread was found (``estimate/significance.py``): ``paired_steps``, steps of equal batches in pairs,
circular block bootstrap; ``steps``, each run's steps by themselves, likewise; ``rounds``, Student's t over alternating
rounds; ``runs``, repeated runs by Mann and Whitney's U test."""


@dataclass(frozen=True)
class Compared:
    """One figure of two sides.

    Attributes:
        ratio: after / before; with ``paired_steps`` of medians, the median of the pairs' ratios.
        low, high: hold the true ratio with probability 1 - ``error``; None where the method gives no interval.
        standard_error: of the ratio's natural logarithm.
        differs: the difference lies outside the noise. That is wrong with probability ``error`` where there is none.
        count: steps, rounds or runs of the side that has fewer.
        block: neighbouring steps that were resampled together.
        p_value: of Mann and Whitney's test.
    """

    method: Method
    before: float
    after: float
    ratio: float
    low: float | None
    high: float | None
    standard_error: float | None
    error: float
    differs: bool
    count: int
    block: int | None = None
    p_value: float | None = None


Verdict = Literal["less", "more", "alike", "undecided"]


@dataclass(frozen=True)
class Look:
    """What a sequential test says after some of its rounds. ``less``, ``more``: the second side takes less or more than
    the first, beyond the noise. ``alike``: the difference is known to be smaller than one that matters. ``undecided``:
    run another round, unless this was the last. ``error``: spent at this look alone."""

    verdict: Verdict
    rounds: int
    is_last: bool
    error: float
    compared: Compared | None
