"""How a run, or a call of ``train()``, ended.

The lines of a process in its run's ``spans.jsonl``, which ``account/processes.py`` reads.

The other ranks of a launch, as their files show them: the account of all needs what the last one has written.

What a process leaves of the run that holds it: its spans, its samples, and in the end its account.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hf_efficient.facts.environment import machine_facts
from hf_efficient.recording.memory import device_peaks, peak_rss_bytes
from hf_efficient.recording.meters import current_device
from hf_efficient.recording.phases import Glimpse, Span
from hf_efficient.recording.stop import RunStopped
from hf_efficient.recording.system import SystemStream
from hf_efficient.records.steps import SCHEMA_VERSION
from hf_efficient.reporting.finish_run import RunResults
from hf_efficient.run_dir.paths import records_path
from hf_efficient.run_dir.reading import TAIL_BYTES, parse_line
from hf_efficient.run_dir.stream import FaultLatch, SignOfLife, SpanStream


class Ending(NamedTuple):
    """``done``; ``stopped``, as it was asked to, and where; or ``error`` with what ended it."""

    how: Literal["done", "stopped", "error"]
    error: str | None


DONE = Ending("done", None)


def ending_of(error: BaseException | None) -> Ending:
    """Kind and first line of the exception that ended it; None: none did."""
    if error is None:
        return DONE
    if isinstance(error, RunStopped):
        return Ending("stopped", str(error))
    lines = str(error).strip().splitlines()
    return Ending("error", f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__)


_MOST_PENDING = 10_000

Way = Literal["recipe", "trainer", "callback"]


class SpanRecords:
    """Writes the lines; those from before a run has a place are kept until it has one.

    Attributes:
        began_ns: reading of the clock where a run took the process over; None while nobody holds it, and then nothing
            is kept.
        dirty: a line came since somebody set it to False.
        facts: what was stated of the run in this process, by topic.
    """

    def __init__(self, start_ns: int, source: str) -> None:
        """Nothing is written before ``open``.

        Args:
            start_ns: reading of the clock at the start of the process, from which all times count.
            source: what told it.
        """
        self.began_ns: int | None = start_ns
        self.dirty = False
        self.facts: dict[str, dict[str, Any]] = {}
        self._start_ns, self._source = start_ns, source
        self._pending: list[dict[str, Any]] = []
        self._stream: SpanStream | None = None
        self._process = 0

    @property
    def process(self) -> int:
        """Number of this process in the run's records; 0 while there are none."""
        return self._process

    @property
    def is_open(self) -> bool:
        """Whether lines go to a file."""
        return self._stream is not None

    def open(self, directory: Path, rank: int, way: Way, alive: SignOfLife, latch: FaultLatch) -> None:
        """From here on lines go to the run's file, first those that were kept.

        Args:
            directory: of the run.
            rank: whose file it is.
            way: how the run is recorded.
            alive: the sign of life (see ``SpanStream``).
            latch: shared with the other files of the run.
        """
        self._stream = SpanStream(records_path(directory, "spans", rank), alive, latch)
        self._process = self._stream.process
        self.write(
            {
                "kind": "process",
                "schema_version": SCHEMA_VERSION,
                "rank": rank,
                "pid": os.getpid(),
                "way": way,
                "process_start_from": self._source,
                "began_at_seconds": self.seconds(self._start_ns if self.began_ns is None else self.began_ns),
            }
        )
        pending, self._pending = self._pending, []
        for record in pending:
            self.write(record)
        self._stream.write_soon()  # a run that is killed at once leaves a trace

    def move_to(self, path: Path) -> None:
        """What was written lies there from here on, and what comes follows it."""
        if self._stream is not None:
            self._stream.move_to(path)

    def begin(self, at_ns: int) -> None:
        """A run takes the process over: what was kept is not its own."""
        self._pending.clear()
        self.facts.clear()
        self.began_ns = at_ns

    def forget(self) -> None:
        """The run no longer holds the process."""
        self._pending.clear()
        self.facts.clear()
        self._stream = self.began_ns = None

    def wake(self) -> None:
        """Write what comes, also after the end of a run."""
        if self._stream is not None:
            self._stream.wake()

    def close(self) -> None:
        """Everything is in the file afterwards."""
        if self._stream is not None:
            self._stream.close()

    def state(self, topic: str, facts: Mapping[str, Any]) -> None:
        """One line of facts; ``facts`` holds them for whoever asks in this process."""
        self.facts.setdefault(topic, {}).update(facts)
        self.write({"kind": "facts", "facts": {topic: dict(facts)}})

    def state_later(self, topic: str, gather: Callable[[], Mapping[str, Any]]) -> None:
        """Facts that the thread that writes gathers; once per topic, and only where there is a file."""
        if self._stream is None or topic in self.facts:
            return
        self.facts[topic], process = {}, self._process

        def line() -> dict[str, Any]:
            return {"kind": "facts", "facts": {topic: dict(gather())}, "process": process}

        self._stream.write_later(line)
        self.dirty = True

    def write(self, record: Mapping[str, Any]) -> None:
        """One line, of whatever kind."""
        if self._stream is not None:
            self._stream.write({**record, "process": self._process})
            self.dirty = True
        elif self.began_ns is not None and len(self._pending) < _MOST_PENDING:
            self._pending.append(dict(record))

    def span(self, start_ns: int, wall_ns: int, phase_ns: Mapping[str, int]) -> None:
        """Time outside the training loops; one without phases or length is not worth a line."""
        if phase_ns and wall_ns > 0:
            self.write(
                {
                    "kind": "span",
                    "started_at_seconds": self.seconds(start_ns),
                    "wall_seconds": wall_ns / 1e9,
                    "phase_seconds": {name: value / 1e9 for name, value in phase_ns.items()},
                }
            )

    def add(self, span: Span) -> None:
        """The same of what a clock has read."""
        self.span(span.start_ns, span.wall_ns, span.phase_ns)

    def alive(self, seen: Glimpse, now_ns: int, memory: Mapping[str, int]) -> dict[str, Any]:
        """A sign of life, which the stream writes itself: until when, and what the span under way has come to."""
        phases = dict(seen.phase_ns)
        if seen.open_phase is not None:
            phases[seen.open_phase] = phases.get(seen.open_phase, 0) + max(0, now_ns - seen.mark_ns)
        return {
            "kind": "alive",
            "process": self._process,
            "at_seconds": self.seconds(now_ns),
            "started_at_seconds": self.seconds(seen.start_ns),
            "open_phase": seen.open_phase,
            "phase_seconds": {name: value / 1e9 for name, value in phases.items()},
            "memory": dict(memory),
        }

    def seconds(self, ns: int) -> float:
        """A reading of the clock, counted from the start of the process."""
        return (ns - self._start_ns) / 1e9

    def lived_seconds(self, now_ns: int) -> float:
        """How long the run has held this process."""
        return (now_ns - (self._start_ns if self.began_ns is None else self.began_ns)) / 1e9


_LOOK_SECONDS = 0.01


def await_other_ranks(directory: Path, most_seconds: float = 3.0) -> bool:
    """Wait until the other ranks have told their end, too; ranks end within some hundredths of a second.

    Waits for those of this machine (``LOCAL_WORLD_SIZE``), which write where this rank does, and for those of other
    machines whose files are here. One that died never tells: hence the limit.

    Args:
        directory: of the run.
        most_seconds: how long.

    Returns:
        Whether all have.
    """
    until = time.monotonic() + most_seconds
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for rank in range(1, int(os.environ.get("WORLD_SIZE", "1"))):
        path = records_path(directory, "spans", rank)
        while (rank < here or path.exists()) and not _has_ended(path):
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
    return True


def _has_ended(path: Path) -> bool:
    """Whether the last process of a rank has told its end; what it does after that may follow."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return False
    for line in reversed(lines):
        record = parse_line(line)
        if record is not None and record.get("kind") in ("end", "process"):
            return record["kind"] == "end"
    return False


class RunFiles:
    """Of one run after the other.

    Attributes:
        directory: where the run that holds the process is recorded; None while there is none.
        way: how that run is recorded; of several trainings, how the last one is.
        latch: told once what cannot be written of it.
        system: samples memory and energy beside it; None while there is none.
        ended: how it ended, as far as is known now; None while it goes on.
        gone: it has ended, and somebody was seen to have removed it since.
    """

    def __init__(self, records: SpanRecords) -> None:
        """No run holds the process.

        Args:
            records: the lines of the process.
        """
        self.directory: Path | None = None
        self.way: Way | None = None
        self.latch = FaultLatch()
        self.system: SystemStream | None = None
        self.ended: Ending | None = None
        self.gone = False
        self._records = records
        self._results = RunResults()
        self._device_peaks: dict[str, int] = {}
        self._rank = 0
        self._held: set[Path] = set()

    def has_held(self, directory: Path) -> bool:
        """Whether a run of this process was recorded there."""
        return directory.resolve() in self._held

    def open(self, directory: Path, rank: int, way: Way, alive: SignOfLife, now_ns: Callable[[], int]) -> None:
        """A run holds the process from here on.

        Args:
            directory: its folder, an absolute path.
            rank: of the process.
            way: how the run is recorded.
            alive: the sign of life.
            now_ns: the clock.
        """
        self.directory, self.way, self.latch = directory, way, FaultLatch()
        self._held.add(directory.resolve())
        self.ended, self.gone, self._rank = None, False, rank
        self._results.forget()
        self._records.open(directory, rank, way, alive, self.latch)
        self._records.state_later("system", machine_facts)
        self.system = SystemStream(
            records_path(directory, "system", rank),
            self._records.process,
            lambda: self._records.seconds(now_ns()),
            self.latch,
            current_device(),
        )

    def move_to(self, directory: Path) -> None:
        """The run is recorded there from here on, with what was recorded of it so far in this process.

        Args:
            directory: its folder, an absolute path on the same file system.
        """
        self.directory = directory
        self._held.add(directory.resolve())
        self._results.forget()
        self._records.move_to(records_path(directory, "spans", self._rank))
        if self.system is not None:
            self.system.device = current_device()
            self.system.move_to(records_path(directory, "system", self._rank))

    def are_gone(self) -> bool:
        """Whether the run has ended, and somebody has removed what was recorded of it."""
        if self.directory is not None and self.ended is not None:
            self.gone = self.gone or not records_path(self.directory, "spans", self._rank).exists()
        return self.gone

    def go_on(self, way: Way) -> None:
        """The run that holds the process has not ended after all.

        Args:
            way: how its next training is recorded; a recipe's run stays one.
        """
        self.ended = None
        if self.way != "recipe":
            self.way = way
        self.wake()

    def wake(self) -> None:
        """Write and sample what comes, also after the end of the run."""
        self._records.wake()
        if self.system is not None:
            self.system.wake()

    def close(self) -> None:
        """Everything is in the files afterwards, and no thread runs."""
        self._records.close()
        if self.system is not None:
            self.system.close()

    def dismiss_system(self) -> None:
        """The samples end where the run has: one that sleeps would take another of a time that is not the run's."""
        if self.system is not None and self.system.is_awake:
            self.system.close()
        self.system = None

    def write_end(self, at_ns: int, *, page: bool = True) -> None:
        """Tell how the run ended, close, and write its account.

        Args:
            at_ns: when, by the clock.
            page: whether to write the page too.
        """
        if not self._records.is_open or self.ended is None or self.directory is None or self.gone:
            return
        if not self.directory.is_dir():
            self.gone = self.latch.told = True  # whoever removed it knows
            self.close()
            return
        at = self._records.seconds(at_ns)
        told = {"ended": self.ended.how, "error": self.ended.error, "at_seconds": at, "memory": self.memory()}
        self._records.write({"kind": "end", **told})
        self.close()
        self._records.dirty = False
        if self._rank == 0 and not self.latch.told:
            if self.ended.how != "error":  # after which the others may hang
                await_other_ranks(self.directory)
            self._results.write(self.directory, self.latch, page=page, tell=self.way != "recipe")

    def forget(self) -> None:
        """No run holds the process any more."""
        self._records.forget()
        self._results.forget()
        self.directory = self.way = self.system = None

    def note_memory(self) -> None:
        """Read the device's peaks from the allocator's books on the host."""
        if self.system is not None:
            self.system.device = current_device()
        peaks = device_peaks()
        self._device_peaks = {name: max(value, self._device_peaks.get(name, 0)) for name, value in peaks.items()}

    def memory(self) -> dict[str, int]:
        """The peaks of the process until now, as far as they are known; of the device, those that were read."""
        rss = peak_rss_bytes()
        return {**({} if rss is None else {"peak_rss_bytes": rss}), **self._device_peaks}
