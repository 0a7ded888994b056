"""How long repeated work takes: by the host's clock, or by the events of a CUDA device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

_ROUNDS = 5
_ROUND_SECONDS = 0.03
_MOST = 1000
"""Of repetitions in a round."""


class Stopwatch(Protocol):
    """Times work on one device."""

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Of the device for one call of ``work``: the mean over ``times`` of them, one after the other."""
        ...

    def settle(self) -> None:
        """Return when the device has done all that it was told."""
        ...


class HostStopwatch:
    """For a CPU, which has done the work when the call returns."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Read this clock, in seconds."""
        self._clock = clock

    def seconds(self, work: Callable[[], object], times: int) -> float:
        before = self._clock()
        for _ in range(times):
            work()
        return (self._clock() - before) / times

    def settle(self) -> None:
        """There is nothing under way."""


class EventStopwatch:
    """For a CUDA device: two events on its stream, so that launching is not part of the time while it is kept busy."""

    def __init__(self, event: Callable[[], Any], synchronize: Callable[[], object]) -> None:
        """Time with these.

        Args:
            event: makes one, as ``torch.cuda.Event(enable_timing=True)``.
            synchronize: waits for the device.
        """
        self._event, self._synchronize = event, synchronize

    def seconds(self, work: Callable[[], object], times: int) -> float:
        start, end = self._event(), self._event()
        start.record()
        for _ in range(times):
            work()
        end.record()
        self._synchronize()
        return float(start.elapsed_time(end)) / 1e3 / times  # events count milliseconds

    def settle(self) -> None:
        self._synchronize()


def steady_seconds(watch: Stopwatch, work: Callable[[], object]) -> float:
    """Seconds of one call: the median of five rounds, each long enough that the timer and a hiccup do not matter.

    The first call is not counted: it may build or choose the kernel.
    """
    work()
    watch.settle()
    once = watch.seconds(work, 1)
    times = min(_MOST, max(1, round(_ROUND_SECONDS / once))) if once > 0 else _MOST
    return statistics.median(watch.seconds(work, times) for _ in range(_ROUNDS))
