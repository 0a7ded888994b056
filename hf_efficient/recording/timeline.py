"""The call of ``train()`` that goes on in this process: when it begins and ends, and that it ends at all.

The time of this process outside its training loops, from its start to its exit.

A process has one timeline, which belongs to one run at a time: the first run to open it holds the process from its
start, a later one from where it opened it, so that no second is in two accounts. What happens before a run is known is
kept until it is. Inside a training loop the step recorder takes over; its records and the timeline's spans tile the
run.

The one timeline of this process, and the end of it.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.recording.clocks import ProcessStart, process_start
from hf_efficient.recording.earlier import Earlier, read_earlier
from hf_efficient.recording.guard import never_raises
from hf_efficient.recording.phases import PhaseClock, PhaseContext, Span
from hf_efficient.recording.run_files import DONE, Ending, RunFiles, SpanRecords, Way, ending_of
from hf_efficient.recording.system import SystemStream
from hf_efficient.records.steps import PhaseName
from hf_efficient.run_dir.stream import FaultLatch

if TYPE_CHECKING:
    from hf_efficient.recording.live import LiveRun

_NOT_SEEN = Ending("error", "its end was not seen: callbacks are not told of an exception")


class TrainingWatch:
    """Writes the lines of its begin and its end."""

    def __init__(self, records: SpanRecords) -> None:
        """No call goes on."""
        self._records = records
        self._segment: int | None = None
        self._close_steps: Callable[[], None] | None = None

    def begins(self, segment: int, at_ns: int, close_steps: Callable[[], None] | None) -> None:
        """``train()`` was called.

        Args:
            segment: of its steps.
            at_ns: reading of the clock.
            close_steps: ends their records.
        """
        self._segment, self._close_steps = segment, close_steps
        self._records.write({"kind": "train", "segment": segment, "at_seconds": self._records.seconds(at_ns)})

    def ends(self, ending: Ending, at_ns: int) -> None:
        """It is over; does nothing where none goes on."""
        segment, self._segment = self._segment, None
        if segment is not None:
            at = self._records.seconds(at_ns)
            told = {"segment": segment, "ended": ending.how, "error": ending.error, "at_seconds": at}
            self._records.write({"kind": "train_end", **told})

    def leave(self, clock: PhaseClock, loop_clock: PhaseClock | None) -> bool:
        """End the records of a call that goes on, as far as is known: it raised, which callbacks are not told.

        Whatever came after its last event is in no phase, since nobody saw when it stopped.

        Args:
            clock: of the process.
            loop_clock: of its training loop; None outside one.

        Returns:
            Whether there was one.
        """
        if self._segment is None:
            return False
        self.ends(_NOT_SEEN, (loop_clock or clock).glimpse().mark_ns)
        if loop_clock is not None:
            loop_clock.stop()
        elif clock.is_open:
            self._records.add(clock.cut(at_last_reading=True))
        if self._close_steps is not None:
            self._close_steps()
        return True


_NO_PHASE: AbstractContextManager[None] = nullcontext()
_INTERRUPTED = Ending("error", "the training did not end, and another run began in its process")
_EXITED = Ending("error", "the process exited before its training ended")


_never_raises = never_raises("The time of this process is no longer recorded")


class Timeline:
    """Writes ``spans.jsonl``; no method raises. One thread uses it, the one that trains.

    Attributes:
        until_exit: the process ends with the run, which then holds it until its exit.
        now: the clock, in nanoseconds.
        earlier: what the run had spent before this process; rank 0 alone reads it.
        live: the figures of the ``train()`` call that goes on; None outside one.
        recorded_training: stands for the training that a callback records, for a second callback of the same one.
        files: what is written of the run that holds the process.
    """

    def __init__(
        self, now: Callable[[], int] = time.perf_counter_ns, start: Callable[[], ProcessStart] = process_start
    ) -> None:
        started = start()
        self.broken = False
        self.until_exit = False
        self.now = self._now = now
        self.earlier = Earlier()
        self.live: LiveRun | None = None
        self.recorded_training: object | None = None
        self._clock = PhaseClock(now, started.perf_ns)
        self._in_loop = False
        self._loop_clock: PhaseClock | None = None
        self._gap: PhaseName | None = "before_trainer"
        self._records = SpanRecords(started.perf_ns, started.source)
        self._training = TrainingWatch(self._records)
        self.files = RunFiles(self._records)

    @property
    def directory(self) -> Path | None:
        """Where the run that holds the process is recorded; None while there is none."""
        return self.files.directory

    @property
    def way(self) -> Way | None:
        """How that run is recorded."""
        return self.files.way

    @property
    def latch(self) -> FaultLatch:
        """Told once what cannot be written of it."""
        return self.files.latch

    @property
    def system(self) -> SystemStream | None:
        """Samples memory and energy beside it; None while there is none."""
        return self.files.system

    @property
    def recording(self) -> bool:
        """Whether a run holds the process that has not ended."""
        return self.directory is not None and self.files.ended is None

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """What was stated of this run in this process, by topic."""
        return self._records.facts

    def has_held(self, directory: Path) -> bool:
        """Whether a run of this process was recorded there."""
        return self.files.has_held(directory)

    def now_seconds(self) -> float:
        """A reading of the clock, to measure a duration by."""
        return self._now() / 1e9

    def lived_seconds(self) -> float:
        """How long the run has held this process: its wall time so far, as the account counts it."""
        return self._records.lived_seconds(self._now())

    @_never_raises
    def begin(self, first_phase: PhaseName) -> None:
        """A run begins whose ``open`` follows; the time since the start of the process is called ``first_phase``."""
        if self.directory is not None:
            self.release()
        if self._records.began_ns is None:
            self._take_over()
        else:
            self._name_gap(first_phase)
        self._gap = None

    @_never_raises
    def trainer_begins(self) -> None:
        """A trainer is built, perhaps in a script that knows nothing of timelines."""
        if self.directory is not None or self._gap is None:
            return
        if self._records.began_ns is None:
            self._take_over()
        self._name_gap(self._gap)
        self._gap = "outside_trainer"

    @_never_raises
    def open(self, directory: Path, rank: int, way: Way) -> None:
        """Record the run in ``directory/spans.jsonl`` (``spans.rankN.jsonl`` on rank N > 0) from here on."""
        directory = directory.absolute()
        if self.directory == directory and not self.files.are_gone():
            self._training.leave(self._clock, self._loop_clock)
            if self._gap is not None:
                self._name_gap(self._gap)
            self._gap = None
            self.files.go_on(way)
            return
        if self.directory is not None:
            self.release()
        if self._records.began_ns is None:
            self._take_over()
        if self._gap is not None:
            self._name_gap(self._gap)
        self._gap = None
        self.earlier = read_earlier(directory) if rank == 0 else Earlier()
        self.files.open(directory, rank, way, self._alive, self._now)

    @_never_raises
    def move_to(self, directory: Path) -> None:
        """The run that holds the process has its place there from here on; its records so far move along."""
        if self.directory is not None:
            self.files.move_to(directory.absolute())

    @_never_raises
    def discard(self) -> None:
        """The run that holds the process never came to be: nothing more is written of it."""
        if self.directory is not None:
            self.files.close()
            self.files.forget()

    def phase(self, name: PhaseName, *, opaque: bool = False) -> AbstractContextManager[None]:
        """A context in which the time belongs to ``name``; nothing inside a training loop, which the steps tell."""
        if self.broken or self._in_loop:
            return _NO_PHASE
        return PhaseContext(self, name, opaque)

    @_never_raises
    def enter(self, name: PhaseName) -> None:
        """Open a phase that ends with the next loop, the next ``leave_all``, or the phase around it."""
        if not self._in_loop:
            self.open_phase(PhaseContext(self, name, False))

    @_never_raises
    def leave_all(self) -> None:
        """End every phase that is open."""
        if not self._in_loop and self._clock.is_open:
            self._cut()

    @_never_raises
    def train_begins(self, segment: int, at_ns: int, close_steps: Callable[[], None] | None = None) -> None:
        """``train()`` was called at this reading of the clock.

        Args:
            segment: of its steps.
            at_ns: the reading.
            close_steps: ends their records, where another run begins and nobody has said that this training is over.
        """
        self._training.begins(segment, at_ns, close_steps)

    @_never_raises
    def train_ends(self, error: BaseException | None = None) -> None:
        """The call is over.

        Args:
            error: what ended it.
        """
        self._training.ends(ending_of(error), self._now())

    @_never_raises
    def loop_begins(self) -> None:
        """From here on the steps tell the time."""
        self._cut()
        self._in_loop = True

    def watch(self, clock: PhaseClock) -> None:
        """The steps' clock, for signs of life."""
        self._loop_clock = clock

    @_never_raises
    def loop_ends(self) -> None:
        """The timeline takes over again; does nothing outside a loop."""
        if self._in_loop:
            self._in_loop, self._loop_clock = False, None
            self._clock.cut()  # the steps' time

    @_never_raises
    def unfinished_step(self, span: Span) -> None:
        """What a loop spent in a step that was never done."""
        self._records.add(span)

    @_never_raises
    def state(self, topic: str, facts: Mapping[str, Any]) -> None:
        """Facts of this process that the account needs beside the times; a key stated again replaces the one before."""
        self._records.state(topic, facts)

    @_never_raises
    def state_later(self, topic: str, gather: Callable[[], Mapping[str, Any]]) -> None:
        """The same of facts that take a while to gather, which the thread that writes them does.

        Args:
            topic: told once per run of this process.
            gather: called by that thread; raises nothing.
        """
        self._records.state_later(topic, gather)

    @_never_raises
    def note(self, kind: str, **what: Any) -> None:
        """Something that happened now: an evaluation's figures, a budget that is spent."""
        self._records.write({"kind": kind, "at_seconds": self._records.seconds(self._now()), **what})

    @_never_raises
    def note_memory(self) -> None:
        """Read the device's peaks from the allocator's books on the host. For logs, evaluations and ends, not steps."""
        self.files.note_memory()

    @_never_raises
    def end(self, error: BaseException | None = None) -> None:
        """The run is over, as far as is known now; everything is in the file afterwards. It may go on.

        Args:
            error: what ended it.
        """
        if self.directory is None:
            return
        self._name_gap(self._gap)  # so that what follows has its own name
        self._gap = "shutdown" if self.way == "recipe" else "outside_trainer"
        self.files.note_memory()
        self.files.ended = ending_of(error)
        self.files.write_end(self._now())

    @_never_raises
    def release(self) -> None:
        """The run no longer holds the process; a run that follows starts where it begins itself."""
        if self.directory is None:  # it ended before it had a place: what it took is nobody's
            self._flush_open_phases()
            self._records.forget()
            self._gap = "before_trainer"
            return
        is_over = self.files.ended is not None
        if self._training.leave(self._clock, self._loop_clock):
            self.files.ended = _INTERRUPTED
        if not is_over or self._records.dirty:
            self._flush_open_phases()
            at_ns = self._now()
            if is_over:
                at_ns = self._clock.glimpse().start_ns
                self.files.dismiss_system()
            self.files.ended = self.files.ended or DONE
            self.files.write_end(at_ns)
        self.files.forget()
        self.live = None
        self._in_loop, self._loop_clock = False, None
        self._gap = "before_trainer"

    @_never_raises
    def exits(self) -> None:
        """The process exits: the last thing that can be recorded."""
        if self.directory is None or self.latch.told:
            return
        self._training.leave(self._clock, self._loop_clock)
        self._in_loop, self._loop_clock = False, None
        self._flush_open_phases()
        if self._gap is not None:
            self._name_gap(self._gap)
        if self.files.ended is None:
            self.files.ended = _EXITED
        self.files.write_end(self._now())
        self._name_gap(self._gap)
        if self._records.dirty:  # the time that the page took
            self.files.write_end(self._now(), page=False)

    def _take_over(self) -> None:
        self._clock.cut()
        self._records.begin(self._clock.glimpse().start_ns)

    def _name_gap(self, phase: PhaseName | None) -> None:
        """The time since the last span, outside every phase."""
        if self._clock.is_open or self._in_loop:
            return
        span = self._clock.cut()
        if phase is not None:
            self._records.span(span.start_ns, span.wall_ns, {phase: span.wall_ns})

    @_never_raises
    def open_phase(self, phase: PhaseContext) -> None:
        """For ``PhaseContext``."""
        if self._in_loop:
            return
        if not self._clock.is_open:
            self._name_gap(self._gap)
            self.files.wake()
        phase.token = self._clock.enter(phase.name, opaque=phase.opaque)

    @_never_raises
    def close_phase(self, phase: PhaseContext) -> None:
        """For ``PhaseContext``."""
        if self._in_loop or not self._clock.is_open:
            return
        self._clock.leave(phase.token)
        if not self._clock.is_open:
            self._cut()
            if self.files.ended is not None:
                self.files.close()  # after the end of the run: no thread for the rest of a notebook's life

    def _cut(self) -> None:
        self._records.add(self._clock.cut())

    def _flush_open_phases(self) -> None:
        if self._clock.is_open:
            self._cut()

    def _alive(self) -> tuple[object, dict[str, Any]]:
        clock = self._loop_clock or self._clock
        seen = clock.glimpse()
        return (id(clock), seen.cuts), self._records.alive(seen, self._now(), self.files.memory())


_timeline: Timeline | None = None


def process_timeline() -> Timeline:
    """The timeline of this process; a process that was forked off starts its own."""
    global _timeline
    if _timeline is None:
        _timeline = Timeline()
    return _timeline


def _forget() -> None:
    global _timeline
    _timeline = None


def _at_exit() -> None:
    if _timeline is not None:
        _timeline.exits()


atexit.register(_at_exit)  # early: what was registered later runs before, and is counted
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
