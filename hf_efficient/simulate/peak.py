"""From the log of a simulation to its peak: when it is, and what it is made of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_efficient.simulate.storage_life import StorageLife
from hf_efficient.simulate.tensor_log import TensorLog


@dataclass(frozen=True)
class Peak:
    """The moment at which most is allocated.

    Attributes:
        bytes: allocated then.
        event: number of allocations and frees up to it; the last of them is the allocation that made the peak.
        life: the storage that was allocated last.
    """

    bytes: int
    event: int
    life: StorageLife


def find_peak(log: TensorLog, start: int = 0, end: int | None = None) -> Peak | None:
    """The peak within some events; None where nothing is allocated in them.

    Args:
        log: of the simulation.
        start, end: events before the first, and up to the last; default: all.
    """
    live = sum(size for _, size in log.events[:start])
    most, at = 0, 0
    for place, (index, size) in enumerate(log.events[start:end], start + 1):
        live += size
        if size > 0 and live > most:
            most, at, last = live, place, index
    return Peak(most, at, log.lives[last]) if at else None


def phase_peaks(log: TensorLog) -> dict[str, int]:
    """Bytes allocated at most within each phase, by the phase of the allocation that reached it."""
    found: dict[str, int] = {}
    live = 0
    for index, size in log.events:
        live += size
        if size > 0:
            phase = log.lives[index].phase
            found[phase] = max(found.get(phase, 0), live)
    return found


def category_peaks(log: TensorLog, category: Callable[[StorageLife], str]) -> dict[str, int]:
    """Bytes of each category at most, each at its own moment: they may add up to more than the peak."""
    of = [category(life) for life in log.lives]
    live: dict[str, int] = {}
    most: dict[str, int] = {}
    for index, size in log.events:
        name = of[index]
        held = live[name] = live.get(name, 0) + size
        if held > most.get(name, 0):
            most[name] = held
    return most


def category_of(life: StorageLife, backward_starts: Sequence[int], vocabulary: int) -> str:
    """What a storage is used for, in the words of ``MemoryCategory``.

    A tensor as wide as the vocabulary is ``logits``, its gradient and its copies included. What a forward leaves for
    the backward is ``activations``; whatever else is allocated and freed on the way is ``rest``.

    Args:
        life: the storage.
        backward_starts: events before each backward, ascending.
        vocabulary: tokens that the model knows.
    """
    if life.category:
        return life.category
    if len(life.shape) > 1 and life.shape[-1] == vocabulary:
        return "logits"
    if life.phase == "recompute":
        return "activations"
    if life.phase == "forward":
        place = bisect_left(backward_starts, life.born_at)
        kept = place < len(backward_starts) and (life.freed_at is None or life.freed_at > backward_starts[place])
        return "activations" if kept else "rest"
    return "rest"
