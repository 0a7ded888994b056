"""Variants of a training step by step, a step's time by their differences, and whether a predicted gain came."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hf_efficient.estimate.statistics import median_spread, student_t

MOST_ROUNDS = 3
_SMALL = 0.15
_NOTHING = 0.02


@dataclass(frozen=True)
class Difference:
    """What one variant takes more than another for the same step. ``low`` and ``high``: 95% by the pairs, wide enough
    for every round's median; ``is_sure``: there are enough pairs."""

    seconds: float
    low: float
    high: float
    rounds: int
    is_sure: bool

    @property
    def is_clear(self) -> bool:
        """Whether it takes more beyond the spread; taking less is no finding, but another speed of the machine."""
        return self.is_sure and self.low > 0


def difference(measured: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> Difference | None:
    """What ``measured`` takes more than ``base``; None without a round that both have.

    A step is paired with the same step of the other, which has the same batches. Pairs show how steps scatter, rounds
    how processes differ, so the interval holds all of the rounds' medians.

    Hand-worked: rounds [5, 6, 7] and [4, 5, 9] against [4, 4, 4] twice: the pairs are 1, 2, 3 and 0, 1, 5; their median
    is 1.5; the medians of the rounds are 2 and 1. Six pairs lie between 0 and 5 with 96.9%: 0 is inside, so it is not
    clear.
    """
    rounds = [
        [one - other for one, other in zip(left, right, strict=False)]
        for left, right in zip(measured, base, strict=False)
    ]
    rounds = [pairs for pairs in rounds if pairs]
    if not rounds:
        return None
    spread = median_spread([pair for pairs in rounds for pair in pairs])
    middles = [statistics.median(pairs) for pairs in rounds]
    return Difference(spread.median, min(spread.low, *middles), max(spread.high, *middles), len(rounds), spread.is_sure)


def wants_another_round(found: Difference, whole_seconds: float) -> bool:
    """Whether running both once more may change what is said of them. A difference below 15% of the step is run twice
    in any case, as processes differ by as much, and a third time where it is neither clear nor certainly within 2%. A
    larger one is run again unless known to within 15%."""
    if found.rounds >= MOST_ROUNDS:
        return False
    if abs(found.seconds) >= _SMALL * whole_seconds and found.is_clear:
        return found.high - found.low > _SMALL * whole_seconds
    is_nothing = max(abs(found.low), abs(found.high)) <= _NOTHING * whole_seconds
    return found.rounds < 2 or not (found.is_clear or is_nothing)


Rounds = Sequence[Sequence[float]]
"""Seconds of each step, round by round."""


@dataclass(frozen=True)
class Link:
    """Two neighbours of the chain; ``part`` is what the first has beyond the second, by the ``more`` that applies."""

    part: str
    more: tuple[str, ...]
    less: str


CHAIN = (
    Link("logging", ("logged",), "quiet"),
    Link("instrumentation", ("as_is",), "quiet"),
    Link("data", ("quiet",), "held_batches"),
    Link("communication", ("held_batches",), "one_process"),
    Link("backward_optimizer", ("one_process", "held_batches"), "forward"),
)
"""A recipe of one process has no ``one_process``, and its ``held_batches`` is that already."""


@dataclass(frozen=True)
class ChainTimes:
    """What the variants took: seconds of each step, by round and name; whether a log fell into those of ``as_is``."""

    seconds: Mapping[str, Rounds]
    left_out: frozenset[str]
    logged: Sequence[Sequence[bool]]


@dataclass(frozen=True)
class StepAttribution:
    """A typical step without what falls between the steps; a part is None where a variant is missing."""

    plain_seconds: float
    differences: Mapping[str, Difference | None]
    forward_seconds: float | None


def attribute(times: ChainTimes) -> StepAttribution:
    """The parts of a typical step. Hand-worked, one round, seconds of every step: as_is 10, quiet 9.5, held_batches 8,
    forward 3; one process. Then instrumentation 0.5, data 1.5, backward and optimizer 5, forward 3: together 10."""
    found = {link.part: link_difference(link, times) for link in CHAIN if _applies(link, times)}
    plain = [one for seconds in _unlogged(times, found.get("logging")) for one in seconds]
    forward = [one for seconds in times.seconds.get("forward", ()) for one in seconds]
    return StepAttribution(statistics.median(plain), found, statistics.median(forward) if forward else None)


def link_difference(link: Link, times: ChainTimes) -> Difference | None:
    """Of the two; None where one of them was not measured."""
    name = next((one for one in link.more if one not in times.left_out), None)
    if name is None or name not in times.seconds or link.less not in times.seconds:
        return None
    more = times.seconds[name]
    if name == "as_is":
        more = _unlogged(times, link_difference(CHAIN[0], times) if _applies(CHAIN[0], times) else None)
    return difference(more, times.seconds[link.less])


def _applies(link: Link, times: ChainTimes) -> bool:
    return link.less not in times.left_out and any(name not in times.left_out for name in link.more)


def _unlogged(times: ChainTimes, log: Difference | None) -> list[list[float]]:
    """``as_is`` less the logs that fell into its steps."""
    each = log.seconds if log is not None and log.is_clear else 0.0
    return [
        [one - each * was_logged for one, was_logged in zip(seconds, logged, strict=True)]
        for seconds, logged in zip(times.seconds["as_is"], times.logged, strict=True)
    ]


LEAST, MOST = 0.5, 2.0
"""A gain that came is as predicted where it is between these times the prediction."""

FEWEST_STEPS = 8
"""Fewest steps for a spread: as many as there are blocks."""

Outcome = Literal["as_predicted", "below_half", "above_twice", "no_difference", "worse", "hidden"]
"""``no_difference``: it lies within the spread, and what was predicted does not; ``hidden``: both lie within it."""


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
    T**2`` (Cochran, Sampling Techniques, 3rd edition, section 2.11). Pauses are planned: only their length varies, and
    ``n`` of variance ``v`` add ``n v``. Differences between runs are not seen.

    Hand-worked: 7 steps of 1 s and one of 3 s, 100 tokens each: S = 10, r = 0.0125, the residuals are 7 times -0.25 and
    1.75, their squares sum up to 3.5, times 8 / 7 is 4, of which the root is 2: 2.365 * 2 / 10 = 0.473. Pauses of 2 and
    4 s have a variance of 2, and add 4 to the 4, and 6 s to the 10: 2.365 * sqrt(8) / 16 = 0.418.

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
    return student_t(0.05, FEWEST_STEPS - 1) * math.sqrt(variance) / (sum(seconds) + sum(sum(kind) for kind in pauses))


def saved_spread(achieved: float, before: float, after: float) -> float:
    """Half of the interval in which a saved share lies. What is left, ``q = 1 - achieved``, is a quotient: its relative
    variance is about the sum of those of its parts. Hand-worked: 0.4 with spreads of 3% and 4%: 0.6 * 0.05 = 0.03."""
    return (1 - achieved) * math.hypot(before, after)


def judge_gain(predicted: float, achieved: float, spread: float) -> Outcome:
    """Hold what came against what was predicted.

    A gain within the spread is no difference, and retracts a prediction beyond it.

    Hand-worked, 0.3 predicted: 0.2 with a spread of 0.05 is as predicted, 0.14 below half, 0.61 above twice; 0.02 with
    0.05 is no difference, since 0.07 is less than 0.3; 0.02 with 0.29 says nothing; -0.1 with 0.05 is worse.
    """
    if abs(achieved) <= spread:
        return "no_difference" if achieved + spread < predicted else "hidden"
    if achieved < 0:
        return "worse"
    if is_as_predicted(predicted, achieved):
        return "as_predicted"
    return "below_half" if achieved < predicted else "above_twice"
