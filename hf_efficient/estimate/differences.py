"""The difference of two variants of a training, step by step and round by round."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.estimate.paired import median_spread

MOST_ROUNDS = 3
_SMALL = 0.15
_NOTHING = 0.02


@dataclass(frozen=True)
class Difference:
    """What one variant takes more than another for the same step.

    Attributes:
        seconds: the median of all pairs.
        low, high: where it lies: with 95% by the pairs, and wide enough for the median of every round.
        rounds: how often the two were run.
        tells: whether there are pairs enough for 95%.
    """

    seconds: float
    low: float
    high: float
    rounds: int
    tells: bool

    @property
    def is_clear(self) -> bool:
        """Whether it takes more beyond the spread; else the two do not differ as far as can be seen.

        That doing more takes less is no finding either: the machine's speed changed between the two.
        """
        return self.tells and self.low > 0


def difference(measured: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> Difference | None:
    """What ``measured`` takes more than ``base``; None without a round that both have.

    A step of the one is paired with the same step of the other, which trains on the same batches. The pairs of one
    round tell how steps scatter; that another process, a minute later, runs at another speed, only several rounds tell,
    so the interval holds all of their medians.

    Hand-worked: rounds [5, 6, 7] and [4, 5, 9] against [4, 4, 4] twice: the pairs are 1, 2, 3 and 0, 1, 5; their median
    is 1.5; the medians of the rounds are 2 and 1. Six pairs lie between 0 and 5 with 96.9%: 0 is inside, so it is not
    clear.

    Args:
        measured, base: seconds of each step, round by round.
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
    return Difference(spread.median, min(spread.low, *middles), max(spread.high, *middles), len(rounds), spread.tells)


def wants_another_round(found: Difference, whole_seconds: float) -> bool:
    """Whether running both once more may change what is said of them.

    A difference below 15% of the step is run twice in any case, for processes differ by as much; and a third time where
    it is then neither clear nor certainly within 2%. A larger one is run again where it is not known to within 15%.

    Args:
        found: so far.
        whole_seconds: of a step as it is.
    """
    if found.rounds >= MOST_ROUNDS:
        return False
    if abs(found.seconds) >= _SMALL * whole_seconds and found.is_clear:
        return found.high - found.low > _SMALL * whole_seconds
    is_nothing = max(abs(found.low), abs(found.high)) <= _NOTHING * whole_seconds
    return found.rounds < 2 or not (found.is_clear or is_nothing)
