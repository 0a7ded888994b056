"""The phases of a step that a trainer marks as they begin: one ends where the next begins."""

from __future__ import annotations

from collections.abc import Callable

from hf_efficient.measure.phases import Mark
from hf_efficient.records import StepPhase

__all__ = ["NO_MARKS", "StepMarks"]


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
