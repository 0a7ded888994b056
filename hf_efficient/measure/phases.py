"""A stopwatch with named phases: every nanosecond between two readings belongs to exactly one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from hf_efficient.records import PhaseName

__all__ = ["Glimpse", "PhaseClock", "PhaseContext", "PhaseOwner", "Span"]


class Span(NamedTuple):
    """What the clock read between two calls of ``cut``.

    Attributes:
        start_ns: reading of the clock at the start.
        wall_ns: nanoseconds from start to end.
        phase_ns: nanoseconds per phase; what is missing from ``wall_ns`` was spent in no phase.
    """

    start_ns: int
    wall_ns: int
    phase_ns: dict[str, int]


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
        stack = list(self._stack)
        return Glimpse(self._cuts, self._start, self._mark, dict(self._phase_ns), stack[-1][1] if stack else None)

    def enter(self, phase: str, *, opaque: bool = False) -> int:
        """Open a phase; returns the token that closes it (0 inside an opaque phase, where nothing opens)."""
        if self._opaque_token:
            return 0
        now, stack = self._now(), self._stack
        if stack:  # as in _charge: a call more, some thirty times a step, would be felt
            outer, held = stack[-1][1], self._phase_ns
            held[outer] = held.get(outer, 0) + now - self._mark
        self._mark = now
        token = self._last_token = self._last_token + 1
        stack.append((token, phase))
        if opaque:
            self._opaque_token = token
        return token

    def leave(self, token: int) -> None:
        """Close the phase of this token, and any that an exception left open inside it.

        A token whose phase is closed already does nothing.
        """
        stack = self._stack
        if stack and stack[-1][0] == token:  # nearly always
            now, phase, held = self._now(), stack.pop()[1], self._phase_ns
            held[phase] = held.get(phase, 0) + now - self._mark
            self._mark = now
        else:
            depth = next((i for i, (known, _) in enumerate(self._stack) if known == token), None)
            if depth is None:
                return
            self._charge()
            del self._stack[depth:]
        if self._opaque_token >= token:
            self._opaque_token = 0

    def stop(self) -> None:
        """No time goes by from the last reading on, for who does not know what came after it."""
        stopped_at = self._mark
        self._now = lambda: stopped_at

    def cut(self, *, at_last_reading: bool = False) -> Span:
        """End the span here and start the next one at the same reading; phases still open are closed.

        Args:
            at_last_reading: end it there instead, since it is not known what came after it.
        """
        if not at_last_reading:
            self._charge()
        span = Span(self._start, self._mark - self._start, self._phase_ns)
        self._start = self._mark
        self._phase_ns = {}
        self._cuts += 1
        self._stack.clear()
        self._opaque_token = 0
        return span

    def _charge(self) -> None:
        now = self._now()
        if self._stack:
            phase = self._stack[-1][1]
            self._phase_ns[phase] = self._phase_ns.get(phase, 0) + now - self._mark
        self._mark = now


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
