"""An instrument that lets the first steps go by, so that its cost can be told by comparison with them."""

from __future__ import annotations

from hf_efficient.measure.instruments.instrument import Instrument, Place

__all__ = ["AFTER_STEPS", "AfterSteps"]

AFTER_STEPS = 4
"""The first step of a training warms up; three are enough to compare with."""


class AfterSteps(Instrument):
    """Runs from the end of some step to the end of the training."""

    def __init__(self, after_step: int = AFTER_STEPS) -> None:
        """Nothing runs before ``start``.

        Args:
            after_step: optimizer steps that go by before, counted in this training.

        Raises:
            ValueError: it is negative.
        """
        super().__init__()
        if after_step < 0:
            raise ValueError(f"after_step is {after_step}; write at least 0")
        self._after, self._done = after_step, 0
        self._place: Place | None = None

    def start(self, place: Place) -> None:
        """Begin at once, where no step is to go by."""
        self._place, self._done = place, 0
        self._switch()

    def step_ends(self, step: int) -> None:
        """Begin, where it is time."""
        self._done += 1
        self._switch()

    def stop(self) -> None:
        """Write what was found."""
        place, self._place = self._place, None
        if self.active and place is not None:
            self.active = False
            self.finish(place)
        elif place is not None:
            self.notes.append(f"training ended after {self._done} steps, and it begins after {self._after}")

    def begin(self, place: Place) -> None:
        """Measure from here on."""

    def finish(self, place: Place) -> None:
        """Measure no more, and write."""

    def _switch(self) -> None:
        if not self.active and self._place is not None and self._done == self._after:
            self.begin(self._place)
            self.active = True
