"""The time of a training's device by phase, from events that nobody waits for, and its memory by the allocator."""

import functools
import logging
import time
from collections.abc import Callable, Mapping
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


class EventPool:
    """Events to be used again, since making one costs more than recording it."""

    def __init__(self, make: Callable[[], Event]) -> None:
        self._make = make
        self._free: list[Event] = []

    def take(self) -> Event:
        return self._free.pop() if self._free else self._make()

    def give(self, events: list[Event]) -> None:
        self._free.extend(events)


@dataclass
class _Interval:
    name: str
    start: Event
    end: Event = None


@dataclass
class DeviceTimes:
    """The events of one step, until they can be read."""

    pool: EventPool
    intervals: list[_Interval] = field(default_factory=list)
    owned: list[Event] = field(default_factory=list)

    def ready(self) -> bool:
        try:  # the last first: while the device is behind, one question is enough
            return all(event.query() for one in reversed(self.intervals) for event in (one.end, one.start))
        except RuntimeError:  # training will meet it as well, and say more
            self.intervals = []
            return True

    def read(self) -> dict[str, float] | None:
        """Seconds per phase, and the events go back to the pool; None where there is none, or one is not yet passed."""
        if not self.ready() or not self.intervals:
            return None
        found: dict[str, float] = {}
        for one in self.intervals:
            found[one.name] = found.get(one.name, 0.0) + one.start.elapsed_time(one.end) / 1e3
        self.pool.give(self.owned)
        self.owned = []
        return found


class DeviceClock:
    """Marks the device's work of a step: forward, backward, optimizer, and what lies between two steps.
    ``communication``, under DDP, is the computing stream's exposed wait for others. A phase that resumes (clipping,
    then the step) is one interval. ``exposed_wait``: between a step's last phase and the next one's first, without
    evaluations and saves, while data was fetched and copied or a log read the loss back."""

    def __init__(self, pool: EventPool) -> None:
        self._pool = pool
        self._times = DeviceTimes(pool)
        self._open: _Interval | None = None
        self._last: _Interval | None = None
        self._depth = 0
        self._idle_since: Event = None
        self._paused = False
        self._waits: list[_Interval] = []

    def enter(self, name: str) -> None:
        """A phase begins on the host; inside another timed one it is part of that."""
        if self._open is not None:
            self._depth += 1
        elif name in _TIMED:
            self._open = self._last if self._last is not None and self._last.name == name else self._begin(name)
        elif name in _APART and self._idle_since is not None:
            self._wait_ends(self._mark())
            self._paused = True

    def leave(self, name: str) -> None:
        if self._depth:
            self._depth -= 1
        elif self._open is not None and self._open.name == name:
            self._end(self._open)
        elif name in _APART and self._paused:
            self._idle_since, self._paused = self._mark(), False

    def cut(self) -> DeviceTimes:
        """The step is over, its trailing work included; what waits since its last phase is the next one's."""
        done, self._times = self._times, DeviceTimes(self._pool)
        carried = {id(event) for wait in self._waits for event in (wait.start, wait.end)} | {id(self._idle_since)}
        self._times.owned = [event for event in done.owned if id(event) in carried]
        done.owned = [event for event in done.owned if id(event) not in carried]
        self._open = self._last = None
        self._depth = 0
        return done

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
        event = self._pool.take()
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
    """Reads the allocator's peaks where a phase begins, and resets them there; ``keep`` gets them for the run. Torch's
    books take about 25 us to build (an estimate), four times per step and twice more per further micro-batch. Short
    steps are therefore read less often, to stay below 1/500 of the time."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        reset: Callable[[], None],
        keep: Callable[[int, int], None],
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._read, self._reset, self._keep, self._now = read, reset, keep, now
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
        step, books = self._step, self._read()
        allocated, reserved = int(books["allocated_bytes"]["all"]["peak"]), int(books["reserved_bytes"]["all"]["peak"])
        step.retries = int(books["num_alloc_retries"])
        step.allocated, step.reserved = max(step.allocated, allocated), max(step.reserved, reserved)
        if step.phase is not None:
            step.phases[step.phase] = max(step.phases.get(step.phase, 0), allocated)
        self._keep(allocated, reserved)
        self._reset()
        step.spent_ns += self._now() - began


class DeviceWatch:
    """Receives the phases of the steps. A fault is logged once and ends it; no method raises."""

    def __init__(self, clock: DeviceClock, peaks: PhasePeaks | None) -> None:
        self._clock, self._peaks = clock, peaks
        self.broken = False

    @_guarded
    def enter(self, name: str) -> None:
        if self._peaks is not None:
            self._peaks.enter(name)
        self._clock.enter(name)

    @_guarded
    def leave(self, name: str) -> None:
        self._clock.leave(name)

    @_guarded
    def cut(self) -> tuple[DeviceTimes | None, StepMemory | None]:
        return self._clock.cut(), None if self._peaks is None else self._peaks.cut()


def watch_device(device: torch.device, *, memory: bool = True) -> DeviceWatch | None:
    """A watch of the training device; None unless it is a started CUDA device. ``memory`` sets allocator peaks back."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    clock = DeviceClock(EventPool(lambda: torch.cuda.Event(enable_timing=True)))
    return DeviceWatch(clock, _peaks(index) if memory else None)


def _peaks(index: int) -> PhasePeaks | None:
    try:
        return PhasePeaks(
            functools.partial(torch.cuda.memory.memory_stats_as_nested_dict, index),
            functools.partial(torch.cuda.reset_peak_memory_stats, index),
            functools.partial(keep_device_peaks, index),
        )
    except RuntimeError as error:  # somebody else's allocator, which keeps no books
        logger.info("The device's memory is not recorded by phase: %s", error)
        return None
