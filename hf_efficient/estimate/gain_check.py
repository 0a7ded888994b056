"""Whether a predicted gain came: a run held against the one that it was predicted from."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Literal

LEAST, MOST = 0.5, 2.0
"""A gain that came is as predicted where it is between these times the prediction."""

FEWEST_STEPS = 8
"""That a spread is told of: as many as there are blocks of them."""

_STUDENT_T = 2.365
"""97.5% of Student's t with 7 degrees of freedom, of 8 blocks."""

Outcome = Literal["as_predicted", "below_half", "above_twice", "no_difference", "worse", "hidden"]
"""``no_difference``: it lies within the spread, and what was predicted does not; ``hidden``: both lie within it."""


def seconds_per_token(loop_seconds: float, tokens: int) -> float:
    """Of the training loop, evaluations and saves included.

    Args:
        loop_seconds: of rank 0.
        tokens: of all ranks that are no padding; more than none.
    """
    return loop_seconds / tokens


def saved_share(before: float, after: float) -> float:
    """Of what it took before: 0.2 where 10 became 8; below 0: it takes more."""
    return 1 - after / before


def is_as_predicted(predicted: float, achieved: float) -> bool:
    """Whether at least half and at most twice of what was predicted came."""
    return LEAST * predicted <= achieved <= MOST * predicted


def rate_spread(seconds: Sequence[float], tokens: Sequence[float], pauses: Sequence[Sequence[float]]) -> float | None:
    """How far the time per token of a run may lie from that of many like it: half of the 95% interval, as a share.

    The steps are put into 8 blocks, one behind the other, since neighbours are alike. With ``s`` and ``t`` the seconds
    and tokens of a block, and ``r = S / T`` of their sums, the variance of ``r`` is about ``8 / 7 * sum((s - r t)**2) /
    T**2`` (Cochran, Sampling Techniques, 3rd edition, section 2.11). Pauses come as they are planned, so that their
    number does not vary, and only their length does: ``n`` of one kind with a variance of ``v`` add ``n v`` to that of
    the sum. What several runs differ in beyond that, the state of the machine for instance, is not seen.

    Hand-worked: 7 steps of 1 s and one of 3 s, 100 tokens each: S = 10, r = 0.0125, the residuals are 7 times -0.25 and
    1.75, their squares sum up to 3.5, times 8 / 7 is 4, of which the root is 2: 2.365 * 2 / 10 = 0.473. Pauses of 2 and
    4 s have a variance of 2, and add 4 to the 4, and 6 s to the 10: 2.365 * sqrt(8) / 16 = 0.418.

    Args:
        seconds: of each step, in their order, without its pauses.
        tokens: of each step that are no padding.
        pauses: by kind, the seconds of each.

    Returns:
        None of fewer than 8 steps, or where no time or token is in them.
    """
    count = len(seconds)
    if count < FEWEST_STEPS or sum(seconds) <= 0 or sum(tokens) <= 0:
        return None
    bounds = [count * number // FEWEST_STEPS for number in range(FEWEST_STEPS + 1)]
    blocks = [slice(*pair) for pair in itertools.pairwise(bounds)]
    rate = sum(seconds) / sum(tokens)
    squares = sum((sum(seconds[block]) - rate * sum(tokens[block])) ** 2 for block in blocks)
    variance = FEWEST_STEPS / (FEWEST_STEPS - 1) * squares
    variance += sum(len(kind) * statistics.variance(kind) for kind in pauses if len(kind) > 1)
    return _STUDENT_T * math.sqrt(variance) / (sum(seconds) + sum(sum(kind) for kind in pauses))


def saved_spread(achieved: float, before: float, after: float) -> float:
    """Half of the interval in which a saved share lies.

    What is left, ``q = 1 - achieved``, is a quotient: its relative variance is about the sum of those of its parts.

    Hand-worked: 0.4 with spreads of 3% and 4%: 0.6 * 0.05 = 0.03.

    Args:
        achieved: the saved share.
        before, after: ``rate_spread`` of the two runs.
    """
    return (1 - achieved) * math.hypot(before, after)


def judge_gain(predicted: float, achieved: float, spread: float) -> Outcome:
    """Hold what came against what was predicted.

    A gain that lies within the spread is no difference, and retracts the prediction where that lies beyond: it would
    have been seen.

    Hand-worked, 0.3 predicted: 0.2 with a spread of 0.05 is as predicted, 0.14 below half, 0.61 above twice; 0.02 with
    0.05 is no difference, since 0.07 is less than 0.3; 0.02 with 0.29 says nothing; -0.1 with 0.05 is worse.

    Args:
        predicted: above 0.
        achieved: in the same unit.
        spread: half of the interval in which the achieved gain lies; 0: it is exact.
    """
    if abs(achieved) <= spread:
        return "no_difference" if achieved + spread < predicted else "hidden"
    if achieved < 0:
        return "worse"
    if is_as_predicted(predicted, achieved):
        return "as_predicted"
    return "below_half" if achieved < predicted else "above_twice"
