"""Packages that only some instruments need.

Functions by name.

What a deeper instrument is.

An instrument that lets the first steps go by, so that its cost can be told by comparison with them.

Drives one instrument through a training: its faults end it and nothing else, and its cost is measured.
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_efficient.errors import SetupError, first_line
from hf_efficient.estimate.throughput import slowdown
from hf_efficient.facts.libraries import is_installed
from hf_efficient.recording.timeline import Timeline
from hf_efficient.records.profile import InstrumentAccount
from hf_efficient.run_dir.json_file import PROFILE


def require(module: str) -> None:
    """It can be imported.

    Raises:
        SetupError: it cannot.
    """
    if not is_installed(module):
        raise SetupError(
            f"the package {module} is not installed; install the extra: pip install 'hf-efficient[profile]'"
        )


def named_functions(key: str, names: Sequence[str]) -> list[Callable[..., Any]]:
    """Python functions by ``package.module:function`` or ``package.module:Class.method``.

    Args:
        key: of the recipe, or the argument, for messages.
        names: of the functions.

    Raises:
        SetupError: a module cannot be imported, there is no such name in it, or it is no function of Python.
    """
    return [_function(key, name) for name in names]


def _function(key: str, name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SetupError(f"{key}: {name}: {module} cannot be imported: {first_line(error)}") from error
    for part in path.split("."):
        if not part or not hasattr(found, part):
            raise SetupError(f"{key}: {name}: there is no {part or 'name'} in it; write package.module:function")
        found = getattr(found, part)
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not inspect.isfunction(found):
        raise SetupError(f"{key}: {name} is no function written in Python, whose lines could be told; name one that is")
    return found


@dataclass(frozen=True)
class Place:
    """Where an instrument works.

    Attributes:
        directory: its files go here; it is there.
        rank: of this process.
        loader: of the training, for who looks into its workers; None where it is not known.
        model: that is trained, for who looks into its modules; None where it is not known.
    """

    directory: Path
    rank: int
    loader: Any = None
    model: Any = None


class Instrument:
    """Base of all of them; an ``InstrumentRun`` calls these methods in order, and catches what they raise.

    Attributes:
        name: of its facts.
        active: the step that begins now is under it.
        files: that it has written.
        notes: what is missing, and why.
    """

    name = ""

    def __init__(self) -> None:
        """Nothing is touched before ``start``."""
        self.active = False
        self.files: list[Path] = []
        self.notes: list[str] = []

    def start(self, place: Place) -> None:
        """Training begins."""

    def step_begins(self, step: int) -> None:
        """The batches of this optimizer step, counted from 1, are there."""

    def step_ends(self, step: int) -> None:
        """This step is done; what follows belongs to the next one."""

    def stop(self) -> None:
        """Training is over, or this instrument failed: write what there is and undo everything."""


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
