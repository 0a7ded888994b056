"""The phases of a step that a trainer marks as they begin: one ends where the next begins."""

from __future__ import annotations

from collections.abc import Callable

from hf_efficient.records import StepPhase

__all__ = ["NO_MARKS", "StepMarks"]


class StepMarks:
    """A function for each phase: from here on the time belongs to it. None takes longer than a call and a clock.

    Each returns what the time belonged to before, for ``back``.

    Attributes:
        nothing: it belongs to no phase.
    """

    __slots__ = (
        "_markers",
        "backward",
        "bookkeeping",
        "data_wait",
        "device_wait",
        "forward",
        "host_to_device",
        "nothing",
        "optimizer",
    )

    def __init__(self, marker: Callable[[StepPhase | None], Callable[[], str | None]]) -> None:
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
        self._markers = {name: getattr(self, name) for name in self.__slots__[1:]}

    def back(self, before: str | None) -> None:
        """What began is over: the time belongs again to what it belonged to before."""
        if before is None:
            self.nothing()
        else:
            self._markers[before]()


def _nobody() -> None:
    """Is told."""


NO_MARKS = StepMarks(lambda _: _nobody)
"""Where no step is recorded."""
