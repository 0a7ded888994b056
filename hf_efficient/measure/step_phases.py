"""The phases of a training loop's steps, on the clocks of host and device.

They are entered and left a dozen times per optimizer step, between kernels, with cold caches: a call more on this way
costs every step ten microseconds. So contexts are made once per name, and catch their faults themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from hf_efficient.measure.device import DeviceWatch
from hf_efficient.measure.device_clock import DeviceTimes
from hf_efficient.measure.phase_ranges import phase_clock
from hf_efficient.measure.phases import Span
from hf_efficient.records import PhaseName, StepMemory

__all__ = ["StepPhase", "StepPhases"]

_OF_THE_HOST = frozenset({"bookkeeping", "device_wait"})
"""Phases that are no work of the device, which is not told of them: that would cost more than they take."""


class StepPhase:
    """A context of one phase, entered again and again, also inside itself; raises nothing."""

    __slots__ = ("_clock", "_device", "_fault", "_name", "_opaque", "_tokens")

    def __init__(self, phases: StepPhases, name: PhaseName, opaque: bool) -> None:
        self._clock, self._device, self._fault = phases.clock, phases.device, phases.fault
        self._name, self._opaque = name, opaque
        self._tokens: list[int] = []

    def __enter__(self) -> None:
        try:
            token = self._clock.enter(self._name, opaque=self._opaque)
            self._tokens.append(token)
            if self._device is not None and token:
                self._device.enter(self._name)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if not self._tokens:  # it could not be entered
                return
            token = self._tokens.pop()
            if self._device is not None and token:
                self._device.leave(self._name)
            self._clock.leave(token)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()


class StepPhases:
    """Of one loop."""

    def __init__(self, now: Callable[[], int], device: DeviceWatch | None, fault: Callable[[], None]) -> None:
        """The first step starts.

        Args:
            now: a monotonic clock in nanoseconds.
            device: is told the phases; None: there is none that keeps a time of its own.
            fault: called where a phase of ``context`` failed, while the exception is handled.
        """
        self.clock = phase_clock(now)
        self.device = device
        self.fault = fault
        self._contexts: dict[tuple[PhaseName, bool], StepPhase] = {}
        self._begun: dict[PhaseName, int] = {}

    def context(self, name: PhaseName, opaque: bool) -> StepPhase:
        """In it the time belongs to ``name``."""
        found = self._contexts.get((name, opaque))
        if found is None:
            found = self._contexts[name, opaque] = StepPhase(self, name, opaque)
        return found

    def begin(self, name: PhaseName) -> None:
        """Open a phase that ``end`` closes; one that has begun goes on."""
        if name not in self._begun:
            token = self._begun[name] = self.clock.enter(name)
            if self.device is not None and token and name not in _OF_THE_HOST:
                self.device.enter(name)

    def end(self, name: PhaseName) -> None:
        """Close what ``begin`` opened; does nothing where it is not open."""
        token = self._begun.pop(name, None)
        if token is not None:
            if self.device is not None and token and name not in _OF_THE_HOST:
                self.device.leave(name)
            self.clock.leave(token)

    def end_all(self) -> None:
        """Close whatever ``begin`` opened, the innermost first."""
        for name in reversed(list(self._begun)):
            self.end(name)

    def cut(self) -> tuple[Span, DeviceTimes | None, StepMemory | None]:
        """The step is over, with every phase that is open."""
        times, memory = (None, None) if self.device is None else self.device.cut()
        self._begun.clear()
        return self.clock.cut(), times, memory

    def abandon(self) -> None:
        """The step is not done; its time goes to the next one, but the device's does not."""
        self.end_all()
        if self.device is not None:
            self.device.cut()
