"""Where a step's time goes, by the differences of variants that were run in turn."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hf_efficient.estimate.statistics import median_spread
from hf_efficient.records.isolation import VariantOutcome

Outcomes = Mapping[str, VariantOutcome]

MOST_ROUNDS: Final = 3
_SMALL = 0.15
_NOTHING = 0.02


@dataclass(frozen=True)
class Difference:
    """``low`` and ``high``: 95% by the pairs, wide enough for every round's median; ``is_sure``: they are enough."""

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
    both = zip(measured, base, strict=False)
    rounds = [[one - other for one, other in zip(left, right, strict=False)] for left, right in both]
    rounds = [pairs for pairs in rounds if pairs]
    if not rounds:
        return None
    spread = median_spread([pair for pairs in rounds for pair in pairs])
    middles = [statistics.median(pairs) for pairs in rounds]
    return Difference(spread.median, min(spread.low, *middles), max(spread.high, *middles), len(rounds), spread.is_sure)


def wants_another_round(found: Difference, whole_seconds: float) -> bool:
    """Whether running both once more may change what is said of them. A difference below 15% of the step is run twice
    in any case, as processes differ by as much. It is run a third time where it is neither clear nor certainly within
    2%. A larger one is run again unless known to within 15%."""
    if found.rounds >= MOST_ROUNDS:
        return False
    if abs(found.seconds) >= _SMALL * whole_seconds and found.is_clear:
        return found.high - found.low > _SMALL * whole_seconds
    is_nothing = max(abs(found.low), abs(found.high)) <= _NOTHING * whole_seconds
    return found.rounds < 2 or not (found.is_clear or is_nothing)


@dataclass(frozen=True)
class Link:
    """Two neighbours of the chain; ``part`` is what the first has beyond the second. A recipe of one process has no
    ``one_process``, and its ``held_batches`` is that already."""

    part: str
    more: tuple[str, ...]  # the first that applies to the recipe
    less: str

    def first(self, held: Outcomes) -> str:
        return next((name for name in self.more if not held[name].left_out), self.more[0])

    def applies(self, held: Outcomes) -> bool:
        return not held[self.less].left_out and not held[self.first(held)].left_out


LOGGING: Final = Link("logging", ("logged",), "quiet")
CHAIN: Final = (
    LOGGING,
    Link("instrumentation", ("as_is",), "quiet"),
    Link("data", ("quiet",), "held_batches"),
    Link("communication", ("held_batches",), "one_process"),
    Link("backward_optimizer", ("one_process", "held_batches"), "forward"),
)


def differences(held: Outcomes) -> dict[str, Difference | None]:
    """The parts of a typical step that apply; None where a variant is missing. Hand-worked, one round, seconds of every
    step: as_is 10, quiet 9.5, held_batches 8, forward 3; one process. Then instrumentation 0.5, data 1.5, backward and
    optimizer 5, forward 3: together 10."""
    return {link.part: _between(link, held) for link in CHAIN if link.applies(held)}


def plain_seconds(held: Outcomes) -> float:
    """A typical step without what falls between the steps."""
    return statistics.median(one for seconds in _unlogged(held) for one in seconds)


def wanted_again(held: Outcomes) -> set[str]:
    whole, found = plain_seconds(held), set[str]()
    for link in CHAIN:
        between = _between(link, held)
        if between is not None and wants_another_round(between, whole):
            found |= {link.first(held), link.less}
    return {name for name in found if not held[name].failure}


def _between(link: Link, held: Outcomes) -> Difference | None:
    name = link.first(held)
    return difference(_unlogged(held) if name == "as_is" else _rounds(held, name), _rounds(held, link.less))


def _rounds(held: Outcomes, name: str) -> list[list[float]]:
    return [run.step_seconds for run in held[name].runs]


def _unlogged(held: Outcomes) -> list[list[float]]:
    log = _between(LOGGING, held)
    each = log.seconds if log is not None and log.is_clear else 0.0
    return [
        [one - each * was_logged for one, was_logged in zip(run.step_seconds, run.step_logged, strict=True)]
        for run in held["as_is"].runs
    ]
