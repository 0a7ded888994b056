"""A stopwatch with named phases: every nanosecond between two readings belongs to exactly one of them.

The phases of a step as ranges that a profiler from outside shows (NVTX); nothing at all while they are off.

The phases of a step that a trainer marks as they begin: one ends where the next begins.

The phases of a training loop's steps, on the clocks of host and device.

They are entered and left a dozen times per optimizer step, between kernels, with cold caches: a call more on this way
costs every step ten microseconds. So contexts are made once per name, and what is called in every step catches its
faults itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from hf_efficient.recording.device_clock import DeviceTimes
from hf_efficient.records.steps import PhaseName, StepMemory, StepPhase

if TYPE_CHECKING:
    from hf_efficient.recording.device import DeviceWatch


class Mark(Protocol):
    """Marks that from here on the time belongs to its phase; returns the mark before, by which that one goes on."""

    def __call__(self) -> Mark:
        """Mark; raises nothing."""


def _no_mark() -> Mark:
    """Nothing is marked."""
    return _no_mark


class Span:
    """What the clock read between two calls of ``cut``.

    Attributes:
        start_ns: reading of the clock at the start.
        wall_ns: nanoseconds from start to end.
    """

    __slots__ = ("_charged", "_marked", "_marks", "_phase_ns", "_since_ns", "start_ns", "wall_ns")

    def __init__(
        self,
        start_ns: int,
        wall_ns: int,
        phase_ns: dict[str, int],
        marks: tuple[Any, ...] | None = None,
        since_ns: int = 0,
        marked: str | None = None,
    ) -> None:
        """A span.

        Args:
            start_ns: see above.
            wall_ns: see above.
            phase_ns: see the property; nobody changes it any more.
            marks: that are still to be charged: a phase and a reading, again and again. None: all is charged.
            since_ns: the reading up to which all is.
            marked: what the time from there to the first mark belongs to.
        """
        self.start_ns, self.wall_ns, self._phase_ns = start_ns, wall_ns, phase_ns
        self._marks, self._since_ns, self._marked = marks, since_ns, marked
        self._charged = phase_ns if marks is None else None

    @property
    def phase_ns(self) -> dict[str, int]:
        """Nanoseconds per phase; what is missing from ``wall_ns`` was spent in no phase. Any thread may ask."""
        if self._charged is None:  # two threads that come here at once find the same
            assert self._marks is not None
            held, since, marked = _charged(self._phase_ns, self._marks, self._since_ns, self._marked, ())
            if marked is not None:
                held[marked] = held.get(marked, 0) + self.start_ns + self.wall_ns - since
            self._charged = held
        return self._charged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and self._told() == other._told()

    def __hash__(self) -> int:
        return hash((self.start_ns, self.wall_ns))

    def __repr__(self) -> str:
        return "Span(start_ns={}, wall_ns={}, phase_ns={})".format(*self._told())

    def _told(self) -> tuple[int, int, dict[str, int]]:
        return self.start_ns, self.wall_ns, self.phase_ns


@dataclass(frozen=True)
class Glimpse:
    """What has been read since the last ``cut``, as another thread sees it.

    Attributes:
        cuts: how many spans the clock has ended; tells whether two glimpses are of the same span.
        start_ns: start of the span under way.
        mark_ns: the last reading; what came after it belongs to ``open_phase``.
        phase_ns: nanoseconds per phase until then.
        open_phase: the innermost phase that is open.
    """

    cuts: int
    start_ns: int
    mark_ns: int
    phase_ns: dict[str, int]
    open_phase: str | None


class PhaseClock:
    """Exclusive, nested phases of host time.

    Time spent in an inner phase is not counted for the outer one. Inside an *opaque* phase, inner phases are
    not told apart: a forward pass of an evaluation stays evaluation. One clock belongs to one thread.
    Entering and leaving a phase costs two readings of the clock and no more than one small tuple.

        clock = PhaseClock()
        token = clock.enter("forward")
        ...
        clock.leave(token)
        span = clock.cut()

    Phases that do not lie inside one another, and come in every step, are marked instead, for a third of the cost:
    ``clock.marker("forward")()`` says that from there on the time belongs to the forward, until another mark. It is
    what the time belongs to outside all phases that were entered, and is worked out when somebody asks.

    Attributes:
        unmarked: the mark that is before the first one of a span.
        last_mark: what the next mark returns.
    """

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, start_ns: int | None = None) -> None:
        """Start reading.

        Args:
            now: a monotonic clock in nanoseconds.
            start_ns: an earlier reading of it, from which the first span starts; default: now.
        """
        self._now = now
        self._start = self._mark = now() if start_ns is None else start_ns
        self._cuts = 0
        self._phase_ns: dict[str, int] = {}
        self._stack: list[tuple[int, str]] = []
        self._opaque_token = 0
        self._last_token = 0
        self._marks: list[Any] = []  # a phase and a reading, again and again
        self._marked: str | None = None
        self.unmarked: Mark = _no_mark
        self.last_mark: Mark = _no_mark

    @property
    def is_open(self) -> bool:
        """Whether any phase is open."""
        return bool(self._stack)

    @property
    def opaque_phase(self) -> str | None:
        """The opaque phase that is open, in which no other is told apart; None outside one."""
        return self._stack[-1][1] if self._opaque_token and self._stack else None

    def glimpse(self) -> Glimpse:
        """The span under way, without a reading and without a change; may be called by another thread."""
        marks, stack = list(self._marks), list(self._stack)
        cuts, start, mark, marked, held = self._cuts, self._start, self._mark, self._marked, dict(self._phase_ns)
        if marks:
            held, mark, marked = _charged(held, marks, mark, marked, stack)
        return Glimpse(cuts, start, mark, held, stack[-1][1] if stack else marked)

    def marker(self, phase: str | None, fault: Callable[[], None]) -> Mark:
        """A function that marks: from here on the time belongs to this phase. Inside an opaque phase it does nothing.

        Args:
            phase: None: the time belongs to none.
            fault: called where it failed, while the exception is handled.
        """
        note, now = self._marks.extend, self._now

        def mark() -> Mark:
            before = self.last_mark
            if not self._opaque_token:
                try:
                    note((phase, now()))
                    self.last_mark = mark
                except Exception:  # noqa: BLE001  it is told of there
                    fault()
            return before

        return mark

    def enter(self, phase: str, *, opaque: bool = False) -> int:
        """Open a phase; returns the token that closes it (0 inside an opaque phase, where nothing opens)."""
        if self._opaque_token:
            return 0
        self._charge()
        token = self._last_token = self._last_token + 1
        self._stack.append((token, phase))
        if opaque:
            self._opaque_token = token
        return token

    def leave(self, token: int) -> None:
        """Close the phase of this token, and any that an exception left open inside it.

        A token whose phase is closed already does nothing.
        """
        depth = next((i for i, (known, _) in enumerate(self._stack) if known == token), None)
        if depth is None:
            return
        self._charge()
        del self._stack[depth:]
        if self._opaque_token >= token:
            self._opaque_token = 0

    def stop(self) -> None:
        """No time goes by from the last reading on, for who does not know what came after it."""
        self._settle()
        stopped_at = self._mark
        self._now = lambda: stopped_at

    def cut(self, *, at_last_reading: bool = False) -> Span:
        """End the span here and start the next one at the same reading; phases still open are closed.

        Args:
            at_last_reading: end it there instead, since it is not known what came after it.
        """
        if at_last_reading or self._stack:
            if at_last_reading:
                self._settle()
            else:
                self._charge()
            end = self._mark
            span = Span(self._start, end - self._start, self._phase_ns)
        else:
            end = self._now()
            marks = tuple(self._marks)
            span = Span(self._start, end - self._start, self._phase_ns, marks, self._mark, self._marked)
        self._start = self._mark = end
        self._phase_ns = {}
        self._cuts += 1
        self._marks.clear()
        self._stack.clear()
        self._opaque_token = 0
        self._marked = None
        self.last_mark = self.unmarked
        return span

    def _charge(self) -> None:
        if self._marks:
            self._settle()
        now, stack, held = self._now(), self._stack, self._phase_ns
        phase = stack[-1][1] if stack else self._marked
        if phase is not None:
            held[phase] = held.get(phase, 0) + now - self._mark
        self._mark = now

    def _settle(self) -> None:
        """Charge the time up to the last mark, at once for whoever looks meanwhile."""
        self._phase_ns, self._mark, self._marked = _charged(
            self._phase_ns, self._marks, self._mark, self._marked, self._stack
        )
        self._marks.clear()


def _charged(
    phase_ns: dict[str, int], marks: Sequence[Any], since: int, marked: str | None, stack: Sequence[tuple[int, str]]
) -> tuple[dict[str, int], int, str | None]:
    """A copy with what lies between the marks that came after ``since``; and the last one's reading and phase."""
    held, inner = dict(phase_ns), stack[-1][1] if stack else None
    for phase, at in zip(marks[::2], marks[1::2], strict=True):
        if at < since:  # settled by the clock's thread while another one looked
            continue
        owner = inner or marked
        if owner is not None:
            held[owner] = held.get(owner, 0) + at - since
        since, marked = at, phase
    return held, since, marked


class PhaseOwner(Protocol):
    """Who has a clock and decides whether a phase may open on it."""

    def open_phase(self, phase: PhaseContext) -> None:
        """Enter, and keep the clock's token in ``phase.token``."""

    def close_phase(self, phase: PhaseContext) -> None:
        """Leave what ``phase.token`` opened."""


class PhaseContext:
    """Context manager of one phase; cheaper than a generator."""

    __slots__ = ("_owner", "name", "opaque", "token")

    def __init__(self, owner: PhaseOwner, name: PhaseName, opaque: bool) -> None:
        self._owner, self.name, self.opaque, self.token = owner, name, opaque, 0

    def __enter__(self) -> None:
        self._owner.open_phase(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner.close_phase(self)


class RangeMarker(Protocol):
    """Opens and closes ranges of this thread, which lie inside one another."""

    def range_push(self, name: str) -> object:
        """Open one."""

    def range_pop(self) -> object:
        """Close the innermost."""


_marker: RangeMarker | None = None


def mark_phases(marker: RangeMarker | None) -> None:
    """Training loops that begin from here on mark their phases; None: they do not."""
    global _marker
    _marker = marker


def phase_clock(now: Callable[[], int]) -> PhaseClock:
    """The clock of a training loop."""
    return PhaseClock(now) if _marker is None else RangedClock(now, _marker)


class RangedClock(PhaseClock):
    """Also opens and closes a range with each phase: exactly those of its stack are open at any time."""

    def __init__(self, now: Callable[[], int], marker: RangeMarker) -> None:
        """No range is open.

        Args:
            now: a monotonic clock in nanoseconds.
            marker: is told.
        """
        super().__init__(now)
        self._marker = marker
        self._wanted: str | None = None
        self._ranged: str | None = None

    def marker(self, phase: str | None, fault: Callable[[], None]) -> Mark:
        """As in any phase clock; inside a phase that was entered, the range opens when that one has been left."""
        plain = super().marker(phase, fault)

        def mark() -> Mark:
            before = plain()
            if not self._opaque_token:
                try:
                    self.last_mark = mark
                    self._wanted = phase
                    self._follow()
                except Exception:  # noqa: BLE001  it is told of there
                    fault()
            return before

        return mark

    def enter(self, phase: str, *, opaque: bool = False) -> int:
        """As in any phase clock."""
        token = super().enter(phase, opaque=opaque)
        if token:
            self._marker.range_push(phase)
        return token

    def leave(self, token: int) -> None:
        """As in any phase clock; ranges that an exception left open inside are closed too."""
        depth = len(self._stack)
        super().leave(token)
        self._pop(depth - len(self._stack))
        self._follow()

    def cut(self, *, at_last_reading: bool = False) -> Span:
        """As in any phase clock."""
        depth = len(self._stack)
        span = super().cut(at_last_reading=at_last_reading)
        self._pop(depth)
        self._wanted = None
        self._follow()
        return span

    def _follow(self) -> None:
        """The range of what is marked lies around all others, so it changes while none of them is open."""
        if self._stack or self._wanted == self._ranged:
            return
        if self._ranged is not None:
            self._marker.range_pop()
        if self._wanted is not None:
            self._marker.range_push(self._wanted)
        self._ranged = self._wanted

    def _pop(self, count: int) -> None:
        for _ in range(count):
            self._marker.range_pop()


class StepMarks:
    """A function for each phase: from here on the time belongs to it. None takes longer than a call and a clock.

    Each returns the one before, by which that phase goes on.

    Attributes:
        nothing: it belongs to no phase.
    """

    __slots__ = (
        "backward",
        "bookkeeping",
        "data_wait",
        "device_wait",
        "forward",
        "host_to_device",
        "nothing",
        "optimizer",
    )

    def __init__(self, marker: Callable[[StepPhase | None], Mark]) -> None:
        """Make them.

        Args:
            marker: makes the function of a phase, or of none.
        """
        self.nothing = marker(None)
        self.data_wait = marker("data_wait")
        self.host_to_device = marker("host_to_device")
        self.forward = marker("forward")
        self.backward = marker("backward")
        self.optimizer = marker("optimizer")
        self.device_wait = marker("device_wait")
        self.bookkeeping = marker("bookkeeping")


def _nobody() -> Mark:
    """Is told."""
    return _nobody


NO_MARKS = StepMarks(lambda _: _nobody)
"""Where no step is recorded."""


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
