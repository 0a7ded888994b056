"""The run that holds this process, one at a time: the first from the start of the process, a later one from where it
began, so that no second is in two accounts. What happens before a run is known is kept until it is."""

import atexit
import importlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hf_efficient.errors import OutputError
from hf_efficient.estimate.forecast import Earlier
from hf_efficient.facts.environment import machine_facts
from hf_efficient.recording.events import EventLog, Fold
from hf_efficient.recording.guard import guard
from hf_efficient.recording.live import LiveRun
from hf_efficient.recording.meters import ProcessStart, process_start
from hf_efficient.recording.run_files import DONE, Ending, RunFiles, Way, await_other_ranks, ending_of
from hf_efficient.recording.system import SystemSampler
from hf_efficient.records.steps import PhaseName
from hf_efficient.run_dir.paths import make_room, records_path

_NOT_SEEN = Ending("error", "its end was not seen: callbacks do not see an exception")
_INTERRUPTED = Ending("error", "the training did not end, and another run began in its process")
_EXITED = Ending("error", "the process exited before its training ended")

_guarded = guard("The time of this process is no longer recorded")


_FINISHED_BY = "hf_efficient.reporting.finish_run"
"""The hook that ends a run where nobody handed another one down; named, since what is presented lies above."""


def _finish(directory: Path, earlier: Any = None, *, page: bool, tell: bool) -> Any:
    """Write the account beside the records; with ``page`` the diagnosis and the page too; ``tell`` logs a finding.
    ``earlier`` is what an earlier call returned for this run. Raises OSError or OutputError."""
    return importlib.import_module(_FINISHED_BY).finish_run(directory, earlier, page=page, tell=tell)


class Timeline:
    """Begins, ends and describes runs; no method raises. One thread uses it, the one that trains. ``until_exit``: the
    process ends with the run. ``recorded_training`` marks the training that a callback records, for a second callback.
    ``finish`` is called where a run ends, on rank 0, and returned ``finished``."""

    def __init__(
        self, now: Callable[[], int] = time.perf_counter_ns, start: Callable[[], ProcessStart] = process_start
    ) -> None:
        self._started = started = start()
        self.log = EventLog(now)
        self.log.on_edge = self._edge
        self.until_exit = False
        self.facts: dict[str, dict[str, Any]] = {}
        self.files: RunFiles | None = None
        self.earlier = Earlier()
        self.live: LiveRun | None = None
        self.recorded_training: object | None = None
        self.finish: Callable[..., Any] = _finish
        self.finished: Any = None
        self._fold = Fold(started.perf_ns)
        self._began_ns: int | None = started.perf_ns
        self._gap: PhaseName | None = "before_trainer"
        self._segment: int | None = None
        self._close_steps: Callable[[int], None] = lambda at_ns: None
        self._held: set[Path] = set()

    @property
    def broken(self) -> bool:
        return self.log.broken

    @broken.setter
    def broken(self, value: bool) -> None:
        self.log.broken = value

    @property
    def directory(self) -> Path | None:
        return None if self.files is None else self.files.directory

    @property
    def way(self) -> Way | None:
        return None if self.files is None else self.files.way

    @property
    def system(self) -> SystemSampler | None:
        return None if self.files is None else self.files.system

    @property
    def recording(self) -> bool:
        return self.files is not None and self.files.ended is None

    def has_held(self, directory: Path) -> bool:
        return directory.resolve() in self._held

    def lived_seconds(self) -> float:
        """How long the run has held this process: its wall time so far, as the account counts it."""
        began_ns = self._started.perf_ns if self._began_ns is None else self._began_ns
        return (self.log.now() - began_ns) / 1e9

    @_guarded
    def begin(self, first_phase: PhaseName) -> None:
        """A run begins whose ``open`` follows; the time since the start of the process is called ``first_phase``."""
        if self.files is not None:
            self.release()
        if self._began_ns is None:
            self._take_over()
        else:
            self._name_gap(first_phase, None)

    @_guarded
    def trainer_begins(self) -> None:
        """A trainer is built, perhaps in a script that knows nothing of timelines."""
        if self.files is not None or self._gap is None:
            return
        gap = self._gap
        if self._began_ns is None:
            self._take_over()
        self._name_gap(gap, "outside_trainer")

    @_guarded
    def open(self, directory: Path, rank: int, way: Way) -> None:
        """Record the run in ``directory/spans.jsonl`` (``spans.rankN.jsonl`` on rank N > 0) from here on."""
        directory, files = directory.absolute(), self.files
        if files is not None and files.directory == directory and not files.is_gone():
            self._leave_training()
            self._settle_gap()
            files.ended = None
            if files.way != "recipe":
                files.way = way
            files.start()
            return
        if files is not None:
            self.release()
        if self._began_ns is None:
            self._take_over()
        self._settle_gap()
        assert self._began_ns is not None
        self.earlier = Earlier()
        if rank == 0 and records_path(directory, "spans", 0).exists():
            from hf_efficient.accounting.money import read_earlier  # which reads as the account does

            self.earlier = read_earlier(directory)
        self.finished = None
        self.files = RunFiles(directory, rank, way, self.log, self._fold, self._started, self._began_ns)
        self._held.add(directory.resolve())
        self.state_later("system", machine_facts)

    @_guarded
    def move_to(self, directory: Path) -> None:
        if self.files is not None:
            self.files.move_to(directory.absolute())
            self._held.add(directory.resolve())

    @_guarded
    def discard(self) -> None:
        """The run that holds the process never came to be: nothing more is written of it."""
        if self.files is not None:
            self.files.stop()
            self._forget()

    def phase(self, name: PhaseName, *, opaque: bool = False) -> AbstractContextManager[None]:
        """A context in which the time belongs to ``name``; nothing inside a training loop, whose steps record it."""
        return nullcontext() if self.log.in_loop else self.log.phase(name, opaque=opaque)

    def enter(self, name: PhaseName) -> None:
        """Open a phase that ends with the next loop, the next ``end_phases``, or the phase around it."""
        if not self.log.in_loop:
            self.log.enter(name)

    @_guarded
    def train_begins(self, segment: int, at_ns: int, close_steps: Callable[[int], None]) -> None:
        """``train()`` was called; ``close_steps`` ends its records at a reading, where nobody said that it is over."""
        assert self.files is not None
        self._segment, self._close_steps = segment, close_steps
        self.log.line({"kind": "train", "segment": segment, "at_seconds": self.files.seconds(at_ns)})

    @_guarded
    def train_ends(self, error: BaseException | None = None, *, unseen_ns: int | None = None) -> None:
        """The call is over, or was at a reading, unseen; does nothing where none is under way."""
        segment, self._segment = self._segment, None
        if segment is not None and self.files is not None:
            ending, at_ns = (ending_of(error), self.log.now()) if unseen_ns is None else (_NOT_SEEN, unseen_ns)
            facts = {"segment": segment, "ended": ending.how, "error": ending.error}
            self.log.line({"kind": "train_end", **facts, "at_seconds": self.files.seconds(at_ns)})

    @_guarded
    def state(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Facts of this process that the account needs beside the times; a key stated again replaces the one before."""
        if self._began_ns is not None:
            self.facts.setdefault(topic, {}).update(facts)
            self.log.line({"kind": "facts", "facts": {topic: dict(facts)}})

    @_guarded
    def state_later(self, topic: str, gather: Callable[[], Mapping[str, Any]]) -> None:
        """Facts that take a while to gather, once per topic; the thread that writes does it, in an open run."""
        if self.files is not None and topic not in self.facts:
            self.facts[topic] = {}
            self.files.later(topic, gather)

    @_guarded
    def note(self, kind: str, **what: Any) -> None:
        """Something that happened now: an evaluation's figures, a budget that is spent."""
        at_seconds = (self.log.now() - self._started.perf_ns) / 1e9
        self.log.line({"kind": kind, "at_seconds": at_seconds, **what})

    @_guarded
    def note_memory(self) -> None:
        """Read the device's peaks from the allocator's books on the host. For logs, evaluations and ends, not steps."""
        if self.files is not None:
            self.files.note_memory()

    @_guarded
    def end(self, error: BaseException | None = None) -> None:
        """The run is over, as far as is known now; everything is in the files afterwards. It may continue."""
        if self.files is None:
            return
        self._name_gap(self._gap, "shutdown" if self.way == "recipe" else "outside_trainer")
        self.files.note_memory()
        was_over, self.files.ended = self.files.ended is not None, ending_of(error)
        self._write_end(self.log.now(), was_over)

    @_guarded
    def release(self) -> None:
        """The run no longer holds the process; a run that follows starts where it begins itself."""
        files = self.files
        if files is None:  # a run that ended before it had a place: what it took is nobody's
            self._forget()
            return
        was_over = files.ended is not None
        if self._leave_training():
            files.ended = _INTERRUPTED
        self.log.end_phases()
        files.fold()
        if not was_over or files.dirty:
            at_ns = self.log.now()
            if was_over:  # a sample now would be of a time that is not the run's
                at_ns, files.system = self._fold.start_ns, None
            files.ended = files.ended or DONE
            self._write_end(at_ns, was_over)
        self._forget()

    @_guarded
    def exits(self) -> None:
        """The process exits: the last thing that can be recorded."""
        files = self.files
        if files is None or files.told:
            return
        self._leave_training()
        self.log.end_phases()
        if self._gap is not None:
            self._name_gap(self._gap, self._gap)
        was_over, files.ended = files.ended is not None, files.ended or _EXITED
        self._write_end(self.log.now(), was_over)
        self._name_gap(self._gap, self._gap)
        files.fold()
        if files.dirty:  # the time that the page took
            self._write_end(self.log.now(), was_over=True, page=False)

    def _edge(self, opens: bool) -> None:
        """After the end of a run a thread runs only while a phase is open, not for the rest of a notebook's life."""
        if self.files is not None and self.files.ended is not None:
            if opens:
                self.files.start()
            else:
                self.files.stop()

    def _take_over(self) -> None:
        self.log.swap()
        self._began_ns = self.log.now()
        self._fold = Fold(self._began_ns)
        self.facts.clear()
        self._gap = None

    def _forget(self) -> None:
        self.log.swap()
        self.log.loop(False)
        self.facts.clear()
        self.files = self.live = self._began_ns = None
        self._gap = "before_trainer"

    def _name_gap(self, past: PhaseName | None, future: PhaseName | None) -> None:
        self.log.gap(past, future)
        self._gap = future

    def _settle_gap(self) -> None:
        if self._gap is not None:
            self._name_gap(self._gap, None)

    def _leave_training(self) -> bool:
        """End the records of a call that raised, unseen by callbacks; time after its last event has no phase."""
        if self._segment is None or self.files is None:
            return False
        self.files.fold()
        at_ns = self._fold.since_ns
        self.train_ends(unseen_ns=at_ns)
        self.log.end_phases(at_ns)
        self._close_steps(at_ns)
        return True

    def _write_end(self, at_ns: int, was_over: bool, *, page: bool = True) -> None:
        files = self.files
        if files is None or files.ended is None or files.gone:
            return
        if was_over and not files.directory.is_dir():
            files.gone = files.told = True  # whoever removed it knows
            files.stop(sample=False)
            return
        files.end(at_ns)
        if files.rank > 0 or files.told:
            return
        if files.ended.how != "error":  # after which the others may hang
            await_other_ranks(files.directory)
        try:
            self.finished = self.finish(files.directory, self.finished, page=page, tell=files.way != "recipe")
        except (OSError, OutputError) as fault:
            files.tell(files.directory / "run.json", fault)


def open_run(timeline: Timeline, directory: Path, rank: int, world_size: int, way: Way, *, resumed: bool) -> None:
    """Open a run whose training begins; a new one moves earlier records aside. Raises nothing."""
    if not (resumed or timeline.broken or timeline.has_held(directory)):
        make_room(directory, rank, world_size)
    timeline.open(directory, rank, way)


_timeline: Timeline | None = None


def process_timeline() -> Timeline:
    """The timeline of this process; a process that was forked off starts its own."""
    global _timeline
    if _timeline is None:
        _timeline = Timeline()
    return _timeline


def no_timeline() -> Timeline:
    """One that records nothing."""
    timeline = Timeline()
    timeline.broken = True
    return timeline


def _forget_timeline() -> None:
    global _timeline
    _timeline = None


def _at_exit() -> None:
    if _timeline is not None:
        _timeline.exits()


atexit.register(_at_exit)  # early: what was registered later runs before, and is counted
os.register_at_fork(after_in_child=_forget_timeline)
