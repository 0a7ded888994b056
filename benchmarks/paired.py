"""Statistics of paired measurements: orders that alternate, the median of the pairs, and its spread.

A machine's speed drifts by more than what is measured here. So A and B are run next to each other, in alternating
order, and each pair gives one ratio or one difference; what drifts slowly falls out of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from hf_efficient.estimate.statistics import CONFIDENCE, Spread, median_spread

__all__ = ["CONFIDENCE", "Spread", "Verdict", "alternating_orders", "differences", "judge", "median_spread", "ratios"]

Verdict = Literal["met", "missed", "undecided"]


def alternating_orders(names: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """In which order the names are run in each round.

    Every other round is its predecessor backwards (A B, B A), so that a drift over two rounds weighs on all alike; over
    ``n!`` rounds of ``n`` names each permutation comes once, so that none always follows the same other.

    Hand-worked for A, B, C: ABC CBA, ACB BCA, BAC CAB.
    """
    forward = [order for order in itertools.permutations(names) if order <= order[::-1]]
    cycle = [order for pair in ((one, one[::-1]) for one in forward) for order in dict.fromkeys(pair)]
    return [cycle[index % len(cycle)] for index in range(rounds)]


def ratios(measured: Sequence[float], base: Sequence[float]) -> list[float]:
    """What was measured by what it is compared with, pair by pair.

    Raises:
        ValueError: the two are not of one length.
    """
    return [one / other for one, other in zip(measured, base, strict=True)]


def differences(measured: Sequence[float], base: Sequence[float]) -> list[float]:
    """What was measured less what it is compared with, pair by pair.

    Raises:
        ValueError: the two are not of one length.
    """
    return [one - other for one, other in zip(measured, base, strict=True)]


def judge(spread: Spread, most: float) -> Verdict:
    """Whether a median is at most ``most``: the interval lies below, above, or on both sides of it.

    With too few pairs for an interval of 95% it is undecided.
    """
    if not spread.tells or spread.low <= most < spread.high:
        return "undecided"
    return "met" if spread.high <= most else "missed"
