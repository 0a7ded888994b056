"""Drives one instrument through a training: its faults end it and nothing else, and its cost is measured."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_efficient.account.profile_files import PROFILE
from hf_efficient.estimate.instrument_cost import slowdown
from hf_efficient.measure.instruments.instrument import Instrument, Place
from hf_efficient.measure.timeline import Timeline
from hf_efficient.records import InstrumentAccount

__all__ = ["InstrumentRun"]

logger = logging.getLogger(__name__)


class InstrumentRun:
    """Calls an instrument, and tells a timeline what it did (facts ``profile``); no method raises.

    A step lasts from the end of the one before to its own, without the instrument's own code. The first of a training
    is compared with none: it warms up.
    """

    def __init__(
        self, instrument: Instrument, timeline: Timeline, now: Callable[[], float] = time.perf_counter
    ) -> None:
        """Nothing runs before ``begin``.

        Args:
            instrument: is driven.
            timeline: is told.
            now: a monotonic clock in seconds.
        """
        self._instrument, self._timeline, self._now = instrument, timeline, now
        self._running = False
        self._own_seconds = 0.0
        self._under: list[float] = []
        self._others: list[float] = []
        self._steps = 0
        self._since = 0.0
        self._was_active = False
        self._told_files = 0

    def begin(self, directory: Path, rank: int, loader: Any = None, model: Any = None) -> None:
        """Training begins.

        Args:
            directory: the ``profile`` folder of the run; is made.
            rank: of this process.
            loader: of the training.
            model: that is trained.
        """
        self.end()
        self._running, self._own_seconds, self._steps, self._told_files = True, 0.0, 0, 0
        self._under, self._others = [], []
        self._instrument.files, self._instrument.notes = [], []
        atexit.register(self.end)  # callbacks are not told of an exception

        def start() -> None:
            directory.mkdir(parents=True, exist_ok=True)
            self._instrument.start(Place(directory, rank, loader, model))

        self._call(start)

    def step_begins(self, step: int) -> None:
        """The batches of a step, counted from 1, are there."""
        if self._running:
            self._call(lambda: self._instrument.step_begins(step), between=False)

    def step_ends(self, step: int) -> None:
        """A step is done."""
        if not self._running:
            return
        lasted = self._now() - self._since
        self._steps += 1
        if self._was_active:
            self._under.append(lasted)
        elif self._steps > 1:
            self._others.append(lasted)
        self._call(lambda: self._instrument.step_ends(step))
        if len(self._instrument.files) != self._told_files:
            self._tell()

    def end(self) -> None:
        """Training is over; does nothing where none goes on."""
        if not self._running:
            return
        self._call(self._instrument.stop)
        self._leave()

    @property
    def account(self) -> InstrumentAccount:
        """What it did so far."""
        slower = slowdown(self._under, self._others)
        ran = self._steps > 0 or self._own_seconds > 0
        notes = [*self._instrument.notes]
        if self._under:
            notes.append(slower.why)
        return InstrumentAccount(
            name=self._instrument.name,
            cost_seconds=self._own_seconds + (slower.seconds or 0.0) if ran else None,
            own_seconds=self._own_seconds,
            steps=len(self._under),
            files=[f"{PROFILE}/{path.name}" for path in self._instrument.files],
            note="; ".join(notes),
        )

    def _call(self, method: Callable[[], None], *, between: bool = True) -> None:
        began = self._now()
        try:
            method()
        except Exception as error:
            name = self._instrument.name
            logger.warning("profile.%s ends here, because of a fault; training goes on.", name, exc_info=True)
            self._instrument.notes.append(f"ended by a fault: {type(error).__name__}: {error}")
            self._stop_after_fault()
        now = self._now()
        self._own_seconds += now - began
        if between:
            self._since, self._was_active = now, self._instrument.active
        else:
            self._since += now - began  # the step goes on

    def _stop_after_fault(self) -> None:
        try:
            self._instrument.stop()
        except Exception:
            logger.debug("It could not be stopped either.", exc_info=True)
        if self._running:
            self._leave()

    def _leave(self) -> None:
        self._running = False
        atexit.unregister(self.end)
        self._tell()

    def _tell(self) -> None:
        told = vars(self.account).copy()
        self._told_files = len(self._instrument.files)
        self._timeline.state("profile", {told.pop("name"): told})
