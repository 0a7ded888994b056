"""Sums of times in whole nanoseconds, in which the clocks count: exact, in whatever order they are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

__all__ = ["add_ns", "by_name", "in_seconds", "phases_ns", "sum_ns"]

_V = TypeVar("_V")


def sum_ns(seconds: Iterable[float]) -> int:
    """The sum of times that are whole nanoseconds, written in seconds; exact up to some weeks."""
    return round(math.fsum(seconds) * 1e9)


def phases_ns(parts: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The sums per phase, in the order in which the phases turn up."""
    return {name: sum_ns(values) for name, values in by_name(parts)}


def by_name(parts: Sequence[Mapping[str, _V]]) -> Iterator[tuple[str, list[_V]]]:
    """Each name in the order in which they turn up, with its values; a part that lacks it has none."""
    for name in dict.fromkeys(itertools.chain.from_iterable(parts)):
        try:
            yield name, [part[name] for part in parts]
        except KeyError:
            yield name, [part[name] for part in parts if name in part]


def add_ns(sums: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the one's phases to the other's."""
    for name, nanoseconds in more.items():
        sums[name] = sums.get(name, 0) + nanoseconds


def in_seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
    """The same in seconds."""
    return {name: value / 1e9 for name, value in nanoseconds.items()}
