"""Sums of times in whole nanoseconds, in which the clocks count: exact, in whatever order they are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["add_ns", "in_seconds", "phases_ns", "sum_ns"]


def sum_ns(seconds: Iterable[float]) -> int:
    """The sum of times that are whole nanoseconds, written in seconds; exact up to some weeks."""
    return round(math.fsum(seconds) * 1e9)


def phases_ns(parts: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The sums per phase, in the order in which the phases turn up."""
    return {name: sum_ns(_told(parts, name)) for name in dict.fromkeys(itertools.chain.from_iterable(parts))}


def _told(parts: Sequence[Mapping[str, float]], name: str) -> list[float]:
    try:
        return [part[name] for part in parts]
    except KeyError:
        return [part[name] for part in parts if name in part]


def add_ns(sums: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the one's phases to the other's."""
    for name, nanoseconds in more.items():
        sums[name] = sums.get(name, 0) + nanoseconds


def in_seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
    """The same in seconds."""
    return {name: value / 1e9 for name, value in nanoseconds.items()}
