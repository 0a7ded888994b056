"""An optimizer step's time by the differences of its variants."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_efficient.estimate.differences import Difference, difference

Rounds = Sequence[Sequence[float]]
"""Seconds of each step, round by round."""


@dataclass(frozen=True)
class Link:
    """Two neighbours of the chain.

    Attributes:
        part: what the first has and the second has not.
        more: names that the first may have: that of the first of them that applies to the recipe.
        less: name of the second.
    """

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
    """What the variants of the chain took.

    Attributes:
        seconds: of each step, round by round, by name of the variant; without those that failed.
        left_out: variants that do not apply to the recipe.
        logged: of ``as_is``, whether a log fell into each step.
    """

    seconds: Mapping[str, Rounds]
    left_out: frozenset[str]
    logged: Sequence[Sequence[bool]]


@dataclass(frozen=True)
class StepAttribution:
    """A typical step.

    Attributes:
        plain_seconds: as it is, without what falls between the steps: the median.
        differences: by part; None where a variant of the two is missing, and no key where the part does not apply.
        forward_seconds: the median of the forward alone; None where it is missing.
    """

    plain_seconds: float
    differences: Mapping[str, Difference | None]
    forward_seconds: float | None


def attribute(times: ChainTimes) -> StepAttribution:
    """The parts of a typical step.

    Hand-worked, one round, seconds of every step: as_is 10, quiet 9.5, held_batches 8, forward 3; one process. Then
    instrumentation 0.5, data 1.5, backward and optimizer 5, forward 3: together 10.

    Args:
        times: with at least one round of ``as_is``.
    """
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
