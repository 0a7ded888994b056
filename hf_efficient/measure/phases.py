"""A stopwatch with named phases: every nanosecond between two readings belongs to exactly one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from hf_efficient.records import PhaseName

__all__ = ["Glimpse", "Mark", "PhaseClock", "PhaseContext", "PhaseOwner", "Span"]


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
