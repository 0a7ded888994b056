"""Runs against each other: what changed between them, each figure with its spread, and the regressions."""

from dataclasses import dataclass
from typing import Literal

COMPARISON_SCHEMA_VERSION = 1

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


@dataclass(frozen=True)
class ComparedSide:
    """A run, or several runs of one recipe. ``steps``: that were measured, without warm-up, of its first run."""

    letter: str
    name: str
    directories: list[str]
    ended: list[str]
    steps: int


@dataclass(frozen=True)
class Changed:
    """One thing in which sides differ. ``setting``: a training argument or the like, of runs without a recipe. A value
    of None: the side has none."""

    kind: Literal["recipe", "data", "setting", "version", "hardware"]
    key: str
    values: list[str | None]


Judgement = Literal["", "better", "worse", "alike"]


@dataclass(frozen=True)
class FigureChange:
    """A figure of a side against that of the first. ``relative``: to it, - 1; None where unknown or the first is 0.
    ``judgement``: ``alike`` within the noise; empty where neither way is better, totals are of other lengths, or
    ``compared`` is None: of a figure with one value a side, such as a peak, whose difference is as measured."""

    relative: float | None
    judgement: Judgement
    compared: Compared | None = None


@dataclass(frozen=True)
class ComparedFigure:
    """``values`` and ``changes`` are side by side; the first has no change. ``better``: ``more``, ``less`` or empty."""

    name: str
    better: str
    values: list[float | None]
    changes: list[FigureChange | None]


@dataclass(frozen=True)
class Resolution:
    """What the steps of a side could show: differences of at least this share of the time for a token, or for a step,
    found in 80% of cases, and how many steps on each side show 1%."""

    letter: str
    figure: str
    share: float
    steps: int
    steps_for_one_percent: int


@dataclass(frozen=True)
class Regression:
    """A figure that is worse than the first side's by more than was allowed."""

    letter: str
    figure: str
    relative: float
    allowed: float


@dataclass(frozen=True)
class RunComparison:
    """Several sides against the first. ``left_out``: figures that the sides do not share, and why."""

    schema_version: int
    hf_efficient_version: str
    sides: list[ComparedSide]
    changed: list[Changed]
    figures: list[ComparedFigure]
    left_out: dict[str, str]
    resolution: list[Resolution]
    notes: list[str]
    regressions: list[Regression]
