"""What is allocated over a simulation, thinned out without losing a peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_efficient.simulate.storage_life import StorageLife
from hf_efficient.simulate.tensor_log import TensorLog


@dataclass(frozen=True)
class Moment:
    """What is allocated at one moment.

    Attributes:
        event: number of allocations and frees up to it.
        phase: of the last allocation.
        categories: bytes by use; those of which there is nothing may be absent.
    """

    event: int
    phase: str
    categories: dict[str, int]


def timeline(log: TensorLog, category: Callable[[StorageLife], str], start: int = 0, most: int = 400) -> list[Moment]:
    """Moments of a simulation, at most so many: of each stretch of as many events, the one with the most allocated.

    The peak of the whole is therefore among them, and all categories of a moment add up to what was allocated then.

    Args:
        log: of the simulation.
        category: what a storage is used for.
        start: events before the first moment.
        most: how many moments.
    """
    of = [category(life) for life in log.lives]
    live: dict[str, int] = {}
    for index, size in log.events[:start]:
        live[of[index]] = live.get(of[index], 0) + size
    width = max(1, -(-(len(log.events) - start) // most))
    moments: list[Moment] = []
    total, phase = sum(live.values()), ""
    for place, (index, size) in enumerate(log.events[start:]):
        live[of[index]] = live.get(of[index], 0) + size
        total += size
        phase = log.lives[index].phase if size > 0 else phase
        if place % width == 0:
            highest = total
            moments.append(Moment(start + place + 1, phase, dict(live)))
        elif total > highest:
            highest = total
            moments[-1] = Moment(start + place + 1, phase, dict(live))
    return moments
