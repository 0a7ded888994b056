"""The time of a training's device by phase, from events that nobody waits for, and its memory by the allocator."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hf_efficient.recording.guard import guard
from hf_efficient.recording.meters import keep_device_peaks
from hf_efficient.records.steps import StepMemory

logger = logging.getLogger(__name__)

_guarded = guard("Time and memory of the device are no longer recorded")
_TIMED = frozenset({"generation", "teacher", "forward", "backward", "optimizer", "forward_backward", "communication"})
_APART = frozenset({"evaluation", "checkpointing"})


Event = Any
"""A mark in the device's queue of work, as ``torch.cuda.Event(enable_timing=True)``; ``record`` moves it to the end."""


@dataclass
class _Interval:
    name: str
    start: Event
    end: Event = None


@dataclass
class DeviceTimes:
    """The events of one step, until they can be read; then they are ``free`` to be used again, since making one costs
    more than recording it."""

    free: list[Event]
    intervals: list[_Interval] = field(default_factory=list)
    owned: list[Event] = field(default_factory=list)

    def ready(self) -> bool:
        try:  # the last first: while the device is behind, one question is enough
            return all(event.query() for one in reversed(self.intervals) for event in (one.end, one.start))
        except RuntimeError:  # training will meet it as well, and say more
            self.intervals = []
            return True

    def read(self) -> dict[str, float] | None:
        """Seconds per phase, and the events are free; None where there is none, or one is not yet passed."""
        if not self.ready() or not self.intervals:
            return None
        found: dict[str, float] = {}
        for one in self.intervals:
            found[one.name] = found.get(one.name, 0.0) + one.start.elapsed_time(one.end) / 1e3
        self.free.extend(self.owned)
        self.owned = []
        return found


class DeviceWatch:
    """Marks the device's work of a step: forward, backward, optimizer, and what lies between two steps; ``peaks``, if
    any, hears of its phases too. A fault is logged once and ends it; no method raises.
    ``communication``, under DDP, is the computing stream's exposed wait for others. A phase that resumes (clipping,
    then the step) is one interval. ``exposed_wait``: between a step's last phase and the next one's first, without
    evaluations and saves, while data was fetched and copied or a log read the loss back."""

    def __init__(self, make: Callable[[], Event], peaks: "PhasePeaks | None" = None) -> None:
        self.broken = False
        self._make, self._peaks = make, peaks
        self._free: list[Event] = []
        self._times = DeviceTimes(self._free)
        self._open: _Interval | None = None
        self._last: _Interval | None = None
        self._depth = 0
        self._idle_since: Event = None
        self._paused = False
        self._waits: list[_Interval] = []

    @_guarded
    def enter(self, name: str) -> None:
        """A phase begins on the host; inside another timed one it is part of that."""
        if self._peaks is not None:
            self._peaks.enter(name)
        if self._open is not None:
            self._depth += 1
        elif name in _TIMED:
            self._open = self._last if self._last is not None and self._last.name == name else self._begin(name)
        elif name in _APART and self._idle_since is not None:
            self._wait_ends(self._mark())
            self._paused = True

    @_guarded
    def leave(self, name: str) -> None:
        if self._depth:
            self._depth -= 1
        elif self._open is not None and self._open.name == name:
            self._end(self._open)
        elif name in _APART and self._paused:
            self._idle_since, self._paused = self._mark(), False

    @_guarded
    def cut(self) -> tuple[DeviceTimes, StepMemory | None]:
        """The step is over, its trailing work included; what waits since its last phase is the next one's."""
        done, self._times = self._times, DeviceTimes(self._free)
        carried = {id(event) for wait in self._waits for event in (wait.start, wait.end)} | {id(self._idle_since)}
        self._times.owned = [event for event in done.owned if id(event) in carried]
        done.owned = [event for event in done.owned if id(event) not in carried]
        self._open = self._last = None
        self._depth = 0
        return done, None if self._peaks is None else self._peaks.cut()

    def _begin(self, name: str) -> _Interval:
        start = self._mark()
        if not self._times.intervals:
            self._wait_ends(start)
            self._times.intervals, self._waits = self._waits, []
        return _Interval(name, start)

    def _wait_ends(self, event: Event) -> None:
        if self._idle_since is not None:
            self._waits.append(_Interval("exposed_wait", self._idle_since, event))
        self._idle_since = None

    def _end(self, interval: _Interval) -> None:
        self._open, self._last = None, interval
        if interval.end is not None:
            interval.end.record()
        else:
            interval.end = self._mark()
            self._times.intervals.append(interval)
        self._idle_since = interval.end

    def _mark(self) -> Event:
        event = self._free.pop() if self._free else self._make()
        event.record()
        self._times.owned.append(event)
        return event


_PEAK_PHASES = frozenset({"forward", "backward", "optimizer", "forward_backward", "evaluation", "checkpointing"})
_REST = 500


@dataclass
class _Step:
    phase: str | None = None
    phases: dict[str, int] = field(default_factory=dict)
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    spent_ns: int = 0


class PhasePeaks:
    """Reads the allocator's peaks where a phase begins, and resets them there; they are kept for the run. Torch's
    books take about 25 us to build (an estimate), four times per step and twice more per further micro-batch. Short
    steps are therefore read less often, to stay below 1/500 of the time."""

    def __init__(self, index: int, now: Callable[[], int] = time.perf_counter_ns) -> None:
        """Of a CUDA device. RuntimeError: somebody else's allocator, which keeps no books."""
        self._index, self._now = index, now
        self._looking = True
        self._rest_until_ns = self._began_ns = now()
        self._step = _Step()
        self._look()
        self._step = _Step()

    def enter(self, name: str) -> None:
        if self._looking and name in _PEAK_PHASES and name != self._step.phase:
            self._look()
            self._step.phase = name

    def cut(self) -> StepMemory | None:
        """End the step, its trailing work included; its peaks, or None where they were not read."""
        looked = self._looking
        if looked:
            self._look()
            self._rest_until_ns = self._began_ns + _REST * self._step.spent_ns
        step, self._step = self._step, _Step()
        self._began_ns = self._now()
        self._looking = self._began_ns >= self._rest_until_ns
        if self._looking and not looked:
            self._look()  # what was allocated until now belongs to a step that was not looked at
            self._step = _Step()
        return StepMemory(step.allocated, step.reserved, step.phases, step.retries) if looked else None

    def _look(self) -> None:
        began = self._now()
        step, books = self._step, torch.cuda.memory.memory_stats_as_nested_dict(self._index)
        allocated, reserved = int(books["allocated_bytes"]["all"]["peak"]), int(books["reserved_bytes"]["all"]["peak"])
        step.retries = int(books["num_alloc_retries"])
        step.allocated, step.reserved = max(step.allocated, allocated), max(step.reserved, reserved)
        if step.phase is not None:
            step.phases[step.phase] = max(step.phases.get(step.phase, 0), allocated)
        keep_device_peaks(self._index, allocated, reserved)
        torch.cuda.reset_peak_memory_stats(self._index)
        step.spent_ns += self._now() - began


def watch_device(device: torch.device, *, memory: bool = True) -> DeviceWatch | None:
    """A watch of the training device; None unless it is a started CUDA device. ``memory`` sets allocator peaks back."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    peaks = None
    try:
        peaks = PhasePeaks(index) if memory else None
    except RuntimeError as error:
        logger.info("The device's memory is not recorded by phase: %s", error)
    return DeviceWatch(lambda: torch.cuda.Event(enable_timing=True), peaks)
