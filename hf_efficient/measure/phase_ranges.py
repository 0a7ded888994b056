"""The phases of a step as ranges that a profiler from outside shows (NVTX); nothing at all while they are off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hf_efficient.measure.phases import Mark, PhaseClock, Span

__all__ = ["RangeMarker", "RangedClock", "mark_phases", "phase_clock"]


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
