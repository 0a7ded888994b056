"""What a probe is, and counters that are read as rates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Probe", "Rates"]


class Probe(Protocol):
    """One part of the machine; read by one thread, about once per second."""

    name: str

    def read(self, at: float) -> dict[str, float]:
        """Figures by name, with their units; those that need an earlier reading are absent in the first.

        Args:
            at: seconds on a monotonic clock.

        Raises:
            Exception: it does not answer; it may do so later.
        """


_LEAST_SECONDS = 0.2


class Rates:
    """How fast counters rise between two readings, a fifth of a second apart or more.

    One that fell (it was started anew) tells nothing.
    """

    def __init__(self) -> None:
        self._last: tuple[float, Mapping[str, float]] | None = None

    def of(self, at: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Rises per second since the reading before, of those that were there too.

        Args:
            at: seconds on a monotonic clock.
            counters: by name.
        """
        before = self._last
        if before is not None and 0 <= at - before[0] < _LEAST_SECONDS:
            return {}  # the next reading counts from the one before: counters move in steps
        self._last = (at, dict(counters))
        if before is None or at < before[0]:
            return {}
        seconds = at - before[0]
        rises = {name: value - before[1][name] for name, value in counters.items() if name in before[1]}
        return {name: rise / seconds for name, rise in rises.items() if rise >= 0}
