"""The phases of a training loop's steps, on the clocks of host and device.

They are entered and left a dozen times per optimizer step, between kernels, with cold caches: a call more on this way
costs every step ten microseconds. So contexts are made once per name, and what is called in every step catches its
faults itself.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from hf_efficient.measure.device import DeviceWatch
from hf_efficient.measure.device_clock import DeviceTimes
from hf_efficient.measure.phase_ranges import phase_clock
from hf_efficient.measure.phases import Mark, Span
from hf_efficient.measure.step_marks import StepMarks
from hf_efficient.records import PhaseName, StepMemory, StepPhase

__all__ = ["PhaseInStep", "StepPhases"]

_OF_THE_HOST = frozenset({"bookkeeping", "device_wait", "communication"})
"""Phases that are no work of the device, which is not told of them: that would cost more than they take.

Communication is told where it takes the place of a phase of the device (see ``begin``).
"""


class PhaseInStep:
    """A context of one phase, entered again and again, also inside itself; raises nothing."""

    __slots__ = ("_device", "_enter", "_fault", "_leave", "_name", "_opaque", "_tokens")

    def __init__(self, phases: StepPhases, name: PhaseName, opaque: bool) -> None:
        self._enter, self._leave = phases.clock.enter, phases.clock.leave
        self._device, self._fault = phases.device, phases.fault
        self._name, self._opaque = name, opaque
        self._tokens: list[int] = []

    def __enter__(self) -> None:
        try:
            token = self._enter(self._name, opaque=True) if self._opaque else self._enter(self._name)
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
            self._leave(token)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()


class WaitPhase:
    """A context in which the rank waits for others: communication, wherever that may be told apart."""

    __slots__ = ("_opened", "_phases")

    def __init__(self, phases: StepPhases) -> None:
        self._phases = phases
        self._opened = False

    def __enter__(self) -> None:
        self._opened = self._phases.begin("communication")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._opened:  # not one that goes on around it
            self._phases.end("communication")


class StepPhases:
    """Of one loop; ``begin``, ``end``, ``end_all``, ``marks`` and what ``context`` returns raise nothing.

    Attributes:
        clock: of the loop.
        device: see ``__init__``.
        fault: see ``__init__``.
        marks: for a trainer that sees each phase begin.
        begun: what ``begin`` opened and nobody has ended, by name.
        is_over: a mark that somebody still holds is not told to the device.
    """

    def __init__(self, now: Callable[[], int], device: DeviceWatch | None, fault: Callable[[], None]) -> None:
        """The first step starts.

        Args:
            now: a monotonic clock in nanoseconds.
            device: is told the phases; None: there is none that keeps a time of its own.
            fault: called where a phase failed, while the exception is handled.
        """
        self.clock = phase_clock(now)
        self._enter, self._leave = self.clock.enter, self.clock.leave
        self.device = device
        self.fault = fault
        self.is_over = False
        self._marked_on_device: StepPhase | None = None
        self.marks = StepMarks(self._marker)
        self.clock.unmarked = self.clock.last_mark = self.marks.nothing
        self._now = now
        self._contexts: dict[bool, dict[PhaseName, PhaseInStep]] = {False: {}, True: {}}
        self._wait = WaitPhase(self)
        self.begun: dict[PhaseName, int] = {}
        self._on_device: set[str] = set()
        self._waits_ns: dict[str, int] = {}
        self._waits_since: tuple[str, int] | None = None

    def _marker(self, phase: StepPhase | None) -> Mark:
        on_host = self.clock.marker(phase, self.fault)
        clock, device, told = self.clock, self.device, None if phase in _OF_THE_HOST else phase
        if device is None:
            return on_host

        def mark() -> Mark:
            before, marked = on_host(), self._marked_on_device
            if clock.opaque_phase is None and not self.is_over:
                clock.last_mark = mark
                if told != marked:
                    if marked is not None:
                        device.leave(marked)
                    if told is not None:
                        device.enter(told)
                    self._marked_on_device = told
            return before

        return mark

    def context(self, name: PhaseName, *, opaque: bool = False) -> PhaseInStep:
        """In it the time belongs to ``name``; in an opaque one no other phase is told apart."""
        contexts = self._contexts[opaque]
        return contexts[name] if name in contexts else contexts.setdefault(name, PhaseInStep(self, name, opaque))

    def wait(self) -> WaitPhase:
        """In it the rank waits for others; no second one opens inside."""
        return self._wait

    def begin(self, name: PhaseName, instead_of: PhaseName | None = None) -> bool:
        """Open a phase that ``end`` closes; one that has begun goes on.

        Args:
            name: of it. Communication inside an opaque phase is counted beside that phase (see ``take_waits``).
            instead_of: the phase around it, which ends on the device, where phases do not lie inside one another.

        Returns:
            Whether it begins here.
        """
        if name in self.begun:
            return False
        try:
            token = self.begun[name] = self._enter(name)
            if not token:
                self._inside_opaque(name)
            elif self.device is not None and (instead_of is not None or name not in _OF_THE_HOST):
                if instead_of is not None:
                    self.device.leave(instead_of)
                self.device.enter(name)
                self._on_device.add(name)
        except Exception:  # noqa: BLE001  it is told of there
            self.fault()
        return True

    def end(self, name: PhaseName, then: PhaseName | None = None) -> None:
        """Close what ``begin`` opened; does nothing where it is not open.

        Args:
            name: of it.
            then: the phase around it, which goes on, on the device as well.
        """
        if name not in self.begun:
            return
        try:
            token = self.begun.pop(name)
            if not token:
                self._outside_again(name)
            elif self.device is not None and name in self._on_device:
                self._on_device.discard(name)
                self.device.leave(name)
                if then is not None:
                    self.device.enter(then)
            self._leave(token)
        except Exception:  # noqa: BLE001  it is told of there
            self.fault()

    def take_waits(self) -> dict[str, int]:
        """Nanoseconds of communication inside opaque phases, by phase, since the last call."""
        taken, self._waits_ns = self._waits_ns, {}
        return taken

    def end_all(self) -> None:
        """Close whatever ``begin`` opened, the innermost first."""
        for name in reversed(list(self.begun)):
            self.end(name)

    def _inside_opaque(self, name: PhaseName) -> None:
        if name == "communication" and (around := self.clock.opaque_phase) is not None:
            self._waits_since = (around, self._now())

    def _outside_again(self, name: PhaseName) -> None:
        if self._waits_since is not None and name == "communication":
            (around, since), self._waits_since = self._waits_since, None
            self._waits_ns[around] = self._waits_ns.get(around, 0) + self._now() - since

    def cut(self) -> tuple[Span, DeviceTimes | None, StepMemory | None]:
        """The step is over, with every phase that is open."""
        times, memory = (None, None) if self.device is None else self.device.cut()
        self.begun.clear()
        self._on_device.clear()
        self._waits_since = self._marked_on_device = None
        return self.clock.cut(), times, memory

    def abandon(self) -> None:
        """The step is not done; its time goes to the next one, but the device's does not."""
        self.end_all()
        self.marks.nothing()
        if self.device is not None:
            self.device.cut()
