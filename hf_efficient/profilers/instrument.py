"""What a deeper instrument is, and how one is driven through a training: its cost measured, its faults caught. The two
for Nsight Systems and Nsight Compute: NVTX ranges of steps and phases, and which steps to capture."""

import atexit
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_efficient.errors import SetupError, first_line
from hf_efficient.estimate.throughput import slowdown
from hf_efficient.facts.environment import is_installed
from hf_efficient.recording.events import mark_phases
from hf_efficient.recording.timeline import Timeline
from hf_efficient.records.profile import InstrumentAccount
from hf_efficient.run_dir.json_file import PROFILE, strict_json, table_path, write_whole
from hf_efficient.text import counted

logger = logging.getLogger(__name__)

AFTER_STEPS = 4
"""The first step of a training warms up; three are enough to compare with."""
NO_CUDA = "needs a CUDA device, and there is none"


@dataclass(frozen=True)
class Place:
    """Where an instrument works: the folder of its files, its rank, and the loader where it is known."""

    directory: Path
    rank: int
    loader: Any = None


class Instrument:
    """Base of all: an ``InstrumentRun`` calls its methods in order; ``active``: the step that begins is under it."""

    name = ""

    def __init__(self) -> None:
        self.active = False
        self.files: list[Path] = []
        self.notes: list[str] = []

    def start(self, place: Place) -> None: ...

    def step_begins(self, step: int) -> None:
        """The batches of this optimizer step, counted from 1, are there."""

    def step_ends(self, step: int) -> None: ...

    def stop(self) -> None:
        """Training is over, or this instrument failed: write what there is and undo everything."""

    def write(self, place: Place, name: str, table: Any, part: str = "") -> None:
        path = table_path(place.directory, name, place.rank, part)
        write_whole(path, strict_json(table))
        if path not in self.files:
            self.files.append(path)


class WindowedInstrument(Instrument):
    """Runs after step ``after_step`` for so many steps, or to the training's end (None); compared with those before."""

    def __init__(self, after_step: int = AFTER_STEPS, steps: int | None = None) -> None:
        super().__init__()
        if after_step < 0 or (steps is not None and steps < 1):
            raise ValueError(f"after_step is {after_step}, steps is {steps}; write at least 0 and 1")
        self._first, self._steps = after_step, steps
        self._done = self._measured = 0
        self._place: Place | None = None

    def start(self, place: Place) -> None:
        self._place, self._done, self._measured = place, 0, 0
        self._switch()

    def step_ends(self, step: int) -> None:
        self._done += 1
        self._measured += self.active
        self._switch()

    def stop(self) -> None:
        place, self._place = self._place, None
        if place is None:
            return
        if self.active:
            self.active = False
            self.finish(place)
        elif self._done < self._first:
            self.notes.append(f"training ended after {counted(self._done, 'step')}, and it begins after {self._first}")

    def begin(self, place: Place) -> None: ...

    def finish(self, place: Place) -> None: ...

    def _switch(self) -> None:
        if self._place is None:
            return
        within = self._done >= self._first and (self._steps is None or self._done < self._first + self._steps)
        if within and not self.active:
            self.begin(self._place)
            self.active = True
        elif self.active and not within:
            self.stop()


class InstrumentRun:
    """Calls an instrument, and states in a timeline what it did (facts ``profile``); no method raises."""

    def __init__(
        self, instrument: Instrument, timeline: Timeline, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._instrument, self._timeline, self._now = instrument, timeline, now
        self._running = False
        self._own_seconds = 0.0
        self._under: list[float] = []
        self._others: list[float] = []
        self._steps = 0
        self._since = 0.0
        self._was_active = False
        self._stated_files = 0

    def begin(self, directory: Path, rank: int, loader: Any = None) -> None:
        """Training begins; ``directory`` is the ``profile`` folder of the run, which is made."""
        self.end()
        self._running, self._own_seconds, self._steps, self._stated_files = True, 0.0, 0, 0
        self._under, self._others = [], []
        self._instrument.files, self._instrument.notes = [], []
        atexit.register(self.end)  # an exception ends a training without an event

        def start() -> None:
            directory.mkdir(parents=True, exist_ok=True)
            self._instrument.start(Place(directory, rank, loader))

        self._call(start)

    def step_begins(self, step: int) -> None:
        if self._running:
            self._call(lambda: self._instrument.step_begins(step), between=False)

    def step_ends(self, step: int) -> None:
        if not self._running:
            return
        lasted = self._now() - self._since
        self._steps += 1
        if self._was_active:
            self._under.append(lasted)
        elif self._steps > 1:
            self._others.append(lasted)
        self._call(lambda: self._instrument.step_ends(step))
        if len(self._instrument.files) != self._stated_files:
            self._state()

    def end(self) -> None:
        if self._running:
            self._call(self._instrument.stop)
            self._leave()

    @property
    def account(self) -> InstrumentAccount:
        slower = slowdown(self._under, self._others)
        ran = self._steps > 0 or self._own_seconds > 0
        return InstrumentAccount(
            name=self._instrument.name,
            cost_seconds=self._own_seconds + (slower.seconds or 0.0) if ran else None,
            own_seconds=self._own_seconds,
            steps=len(self._under),
            files=[f"{PROFILE}/{path.name}" for path in self._instrument.files],
            note="; ".join([*self._instrument.notes, *([slower.why] if self._under else [])]),
        )

    def _call(self, method: Callable[[], None], *, between: bool = True) -> None:
        began = self._now()
        try:
            method()
        except Exception as error:
            name = self._instrument.name
            logger.warning("profile.%s ends here, because of a fault; training continues.", name, exc_info=True)
            self._instrument.notes.append(f"ended by a fault: {type(error).__name__}: {error}")
            with suppress(Exception):
                self._instrument.stop()
            if self._running:
                self._leave()
        now = self._now()
        self._own_seconds += now - began
        if between:
            self._since, self._was_active = now, self._instrument.active
        else:
            self._since += now - began  # the step continues

    def _leave(self) -> None:
        self._running = False
        atexit.unregister(self.end)
        self._state()

    def _state(self) -> None:
        stated = vars(self.account).copy()
        self._stated_files = len(self._instrument.files)
        self._timeline.state("profile", {stated.pop("name"): stated})


class NvtxRanges(Instrument):
    """A range ``step 6`` per optimizer step, of the process; inside it those of its phases, where they are recorded."""

    name = "nvtx"
    _marker: Any = None
    _open: Any = None

    def start(self, place: Place) -> None:
        self._marker = torch.cuda.nvtx if torch.cuda.is_available() else None
        if self._marker is None:
            self.notes.append(NO_CUDA)
        mark_phases(self._marker)

    def step_begins(self, step: int) -> None:
        if self._marker is not None:
            self.step_ends(step)
            self._open = self._marker.range_start(f"step {step}")

    def step_ends(self, step: int) -> None:
        if self._open is not None:
            self._marker.range_end(self._open)
            self._open = None

    def stop(self) -> None:
        self.step_ends(0)
        mark_phases(None)


class Capture(WindowedInstrument):
    """``cudaProfilerStart`` before the first of the steps, ``cudaProfilerStop`` after the last."""

    name = "capture"

    def start(self, place: Place) -> None:
        if torch.cuda.is_available():
            super().start(place)
        else:
            self.notes.append(NO_CUDA)

    def begin(self, place: Place) -> None:
        torch.cuda.profiler.start()

    def finish(self, place: Place) -> None:
        torch.cuda.profiler.stop()


def require(module: str) -> None:
    """Raise SetupError, with the extra that brings it, where a module is not installed."""
    if not is_installed(module):
        remedy = "install the extra: pip install 'hf-efficient[profile]'"
        raise SetupError(f"the package {module} is not installed; {remedy}")


def named_functions(key: str, names: Sequence[str]) -> list[Callable[..., Any]]:
    """Python functions by ``package.module:function`` or ``package.module:Class.method``; ``key`` is for messages.
    Raises ``SetupError``: a module cannot be imported, there is no such name in it, or it is no function of Python."""
    return [_function(key, name) for name in names]


def _function(key: str, name: str) -> Callable[..., Any]:
    found = imported(key, name)
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not inspect.isfunction(found):
        raise SetupError(f"{key}: {name} is not written in Python: its lines cannot be timed. Name a Python function.")
    return found


def imported(key: str, name: str) -> Any:
    """What ``package.module:name`` stands for; raises ``SetupError`` as above."""
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        remedy = "Install it, or name its folder in PYTHONPATH."
        raise SetupError(f"{key}: {name}: {module} cannot be imported: {first_line(error)}. {remedy}") from error
    for part in path.split("."):
        if not part or not hasattr(found, part):
            raise SetupError(f"{key}: {name}: there is no {part or 'name'} in it; write package.module:function")
        found = getattr(found, part)
    return found
