"""What a process writes of its run, by one thread, once a second: it folds the log's events, writes what came of them,
and samples the machine. Training waits for it at the end alone."""

import functools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from hf_efficient.recording.events import EventLog, Fold, Span
from hf_efficient.recording.meters import ProcessStart, current_device, device_peaks, peak_rss_bytes
from hf_efficient.recording.stop import RunStopped
from hf_efficient.recording.system import SystemSampler
from hf_efficient.records.steps import SCHEMA_VERSION, StepRecord
from hf_efficient.run_dir.jsonl import JsonlFile, last_record
from hf_efficient.run_dir.paths import records_path

logger = logging.getLogger(__name__)

Way = Literal["recipe", "trainer", "callback"]

_ROUND_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0
"""That the end of a run waits for a probe or a disk that does not answer."""
_MOST_WAITING = 64
"""Steps that wait for the device; one more is written without its device figures."""

_json = msgspec.json.Encoder()


class Ending(NamedTuple):
    """Of a run, or a call of ``train()``; with what ended it, or where it was stopped."""

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


class RunFiles:
    """Of one run in one process. The thread runs from ``start`` to ``stop``; a run that continues starts it again.
    ``way`` is that of the last training. ``gone``: somebody removed the directory after the run ended; ``dirty``:
    something came since the end was written; ``told``: what cannot be written was logged."""

    def __init__(
        self, directory: Path, rank: int, way: Way, log: EventLog, fold: Fold, started: ProcessStart, began_ns: int
    ) -> None:
        self.directory, self.rank, self.way = directory, rank, way
        self.ended: Ending | None = None
        self.gone, self.dirty = False, True
        self.told = False
        self.on_step: Callable[[StepRecord], None] = lambda record: None
        self._log, self._fold, self._start_ns = log, fold, started.perf_ns
        self._folding, self._writing = threading.Lock(), threading.RLock()
        self._files: dict[str, JsonlFile] = {}
        self._lines: dict[str, list[bytes]] = {"spans": [], "steps": []}
        self._waiting: deque[Span] = deque()
        self._later: deque[tuple[str, Callable[[], Mapping[str, Any]]]] = deque()
        self._device_peaks: dict[str, int] = {}
        self._segment: int | None = None
        self._thread: threading.Thread | None = None
        path = records_path(directory, "spans", rank)
        previous = last_record(path, "process")
        self._try(path, lambda: self._file("spans", path))  # the folder is there from here on
        self.process = 0 if previous is None else int(previous["process"]) + 1
        now = lambda: self.seconds(log.now())  # noqa: E731
        self.system: SystemSampler | None = SystemSampler(self.process, now, current_device())
        began = {"process_start_from": started.source, "began_at_seconds": self.seconds(began_ns)}
        known = {"schema_version": SCHEMA_VERSION, "rank": rank, "pid": os.getpid(), "way": way}
        self._take({"kind": "process", **known, **began})
        self.start()

    def seconds(self, ns: int) -> float:
        return (ns - self._start_ns) / 1e9

    def next_segment(self) -> int:
        if self._segment is None:
            previous = last_record(records_path(self.directory, "steps", self.rank), "segment")
            self._segment = -1 if previous is None else int(previous["segment"])
        self._segment += 1
        return self._segment

    def later(self, topic: str, gather: Callable[[], Mapping[str, Any]]) -> None:
        self._later.append((topic, gather))
        self.dirty = True

    def fold(self, *, wait: bool = False) -> None:
        """Decide what the events until now come to; writes nothing. ``wait``: for what a device has yet to report."""
        with self._folding:
            for one in self._fold.take(self._log.swap()):
                self._take(one)
            self._take_steps(wait)

    def so_far(self) -> Span:
        self.fold()
        with self._folding:
            return self._fold.so_far(self._log.now())

    def start(self) -> None:
        if self._thread is not None:
            return
        self._stopping = threading.Event()
        thread = threading.Thread(target=self._run, args=(self._stopping,), name="hf-efficient records", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            self.tell(self.directory, error)
            return
        self._thread = thread

    def stop(self, *, sample: bool = True) -> None:
        """Everything is in the files afterwards, and no thread runs; a disk or a probe that hangs is left behind."""
        self._end_thread(sample)
        self._write_last()

    def end(self, at_ns: int) -> None:
        assert self.ended is not None
        self._end_thread(sample=self.system is not None)
        ending = {"ended": self.ended.how, "error": self.ended.error, "at_seconds": self.seconds(at_ns)}
        self._log.line({"kind": "end", **ending, "memory": self._memory()})  # no heartbeat follows
        self._write_last()
        self.dirty = False

    def _end_thread(self, sample: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping.set()
            thread.join(_PATIENCE_SECONDS)
            if thread.is_alive() and self.system is not None:
                self.system.give_up(TimeoutError(f"no answer within {_PATIENCE_SECONDS:g} s"))
        elif sample:
            self._gather()
            self._sample()

    def _write_last(self) -> None:
        if not self._writing.acquire(timeout=0.1):
            self.tell(self.directory, TimeoutError(f"no answer within {_PATIENCE_SECONDS:g} s"))
            return
        try:
            self._write(last=True)
        finally:
            self._writing.release()

    def is_gone(self) -> bool:
        if self.ended is not None:
            self.gone = self.gone or not records_path(self.directory, "spans", self.rank).exists()
        return self.gone

    def move_to(self, directory: Path) -> None:
        """What was written lies there from here on, on the same file system; what comes follows it."""
        awake = self._thread is not None
        self.stop()
        self.directory = directory
        for kind, file in self._files.items():
            self._try(file.path, functools.partial(file.move_to, records_path(directory, kind, self.rank)))
        if awake:
            self.start()

    def note_memory(self) -> None:
        if self.system is not None:
            self.system.device = current_device()
        for name, value in device_peaks().items():
            self._device_peaks[name] = max(value, self._device_peaks.get(name, 0))

    def _memory(self) -> dict[str, int]:
        return {"peak_rss_bytes": peak_rss_bytes(), **self._device_peaks}

    def _run(self, stopping: threading.Event) -> None:
        while True:
            with self._writing:
                self._write(last=False)
            self._sample()
            stops = stopping.wait(_ROUND_SECONDS)
            self._gather()
            if stops:
                break
        self._sample()

    def _sample(self) -> None:
        sample = None if self.system is None else self.system.sample()
        if sample is not None:
            with self._writing:
                self._append("system", _line(sample))

    def _gather(self) -> None:
        while self._later:
            topic, gather = self._later.popleft()
            self._log.line({"kind": "facts", "facts": {topic: dict(gather())}})

    def _take(self, one: Span | Mapping[str, Any]) -> None:
        self.dirty = True
        if not isinstance(one, Span):
            self._lines["spans"].append(_line({**one, "process": self.process}))
        elif one.step is not None:
            self._waiting.append(one)
        else:
            wall_seconds, phases = (one.end_ns - one.start_ns) / 1e9, in_seconds(one.phase_ns)
            times = {"started_at_seconds": self.seconds(one.start_ns), "wall_seconds": wall_seconds}
            self._take({"kind": "span", **times, "phase_seconds": phases})

    def _take_steps(self, wait: bool) -> None:
        while self._waiting:
            span = self._waiting[0]
            if not span.step.ready(wait=wait, patient=len(self._waiting) <= _MOST_WAITING):
                return
            self._waiting.popleft()
            record = span.step.record(span)
            self._lines["steps"].append(_line(record.to_json()))
            self.on_step(record)
            time.sleep(0)  # the training thread may wait for the interpreter's lock

    def _write(self, *, last: bool) -> None:
        self._try(self.directory, lambda: self.fold(wait=last))
        with self._folding:
            lines, self._lines = self._lines, {"spans": [], "steps": []}
            alive = b"" if last else self._alive()
        self._append("steps", b"".join(lines["steps"]))
        self._append("spans", b"".join(lines["spans"]), alive)

    def _append(self, kind: str, lines: bytes, tail: bytes = b"") -> None:
        if lines or tail:
            path = records_path(self.directory, kind, self.rank)
            self._try(path, lambda: self._file(kind, path).append(lines, tail))

    def _file(self, kind: str, path: Path) -> JsonlFile:
        if kind not in self._files:
            self._files[kind] = JsonlFile(path)
        return self._files[kind]

    def _try(self, path: Path, do: Callable[[], object]) -> None:
        if not self.told:
            try:
                do()
            except Exception as error:  # noqa: BLE001  whatever it is, the training must not notice
                self.tell(path, error)

    def tell(self, path: Path, error: Exception) -> None:
        """Of one fault of several files that fail together."""
        told, self.told = self.told, True
        if not told:
            logger.warning("%s cannot be written (%s). Training continues; its steps are not recorded.", path, error)

    def _alive(self) -> bytes:
        """Until when the process has lived, and what the span under way has come to, should it be killed."""
        now_ns = self._log.now()
        seen = self._fold.so_far(now_ns)
        times = {"at_seconds": self.seconds(now_ns), "started_at_seconds": self.seconds(seen.start_ns)}
        phases = {"open_phase": seen.open_phase, "phase_seconds": in_seconds(seen.phase_ns)}
        return _line({"kind": "alive", "process": self.process, **times, **phases, "memory": self._memory()})


def _line(record: Mapping[str, Any]) -> bytes:
    return _json.encode(record) + b"\n"


def in_seconds(of: Mapping[str, int]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in of.items()}


def await_other_ranks(directory: Path, most_seconds: float = 3.0) -> bool:
    """Wait until the other ranks here, or whose files are here, have written their end; whether all have."""
    until = time.monotonic() + most_seconds
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for rank in range(1, int(os.environ.get("WORLD_SIZE", "1"))):
        path = records_path(directory, "spans", rank)
        while rank < here or path.exists():
            last = last_record(path, kinds=("process", "end"))
            if last is not None and last["kind"] == "end":
                break
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
    return True
