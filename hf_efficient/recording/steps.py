"""What is known of an optimizer step, from its first micro-batch to its record.

From phases, tokens and steps to step records in a file; knows no trainer.

What a run says of itself while it goes on: figures for its logs, notes of its evaluations and saves.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import msgspec

from hf_efficient.estimate.flops import WorkFormula
from hf_efficient.recording.compilation import CompilationWatch
from hf_efficient.recording.device_clock import DeviceTimes
from hf_efficient.recording.live import WHOLE_PREFIX, LiveRun, RunningFigures, log_figures
from hf_efficient.recording.loader import LoaderMark, LoaderWatch, step_loader, watch_stated
from hf_efficient.recording.phases import NO_MARKS, Glimpse, PhaseClock, Span, StepPhases
from hf_efficient.recording.ranks import CollectiveWatch
from hf_efficient.recording.timeline import Timeline
from hf_efficient.recording.tokens import TokenTally
from hf_efficient.records.steps import (
    PhaseName,
    SequenceCounts,
    StepLoader,
    StepMemory,
    StepRecord,
    StepWork,
    TokenCounts,
)
from hf_efficient.run_dir.paths import records_path
from hf_efficient.run_dir.reading import last_record
from hf_efficient.run_dir.stream import JsonlStream

if TYPE_CHECKING:
    from hf_efficient.recording.device import DeviceWatch

logger = logging.getLogger(__name__)


class Counting:
    """What a step's micro-batches come to. A fault is one warning, and no counts from then on; no method raises.

    Attributes:
        scored, at_once: for the tally of a step that begins.
        watches: wants to be told of the end of the step.
    """

    def __init__(self, formula: WorkFormula | None = None) -> None:
        """Count; ``formula``: of the FLOPs, None where they are not known."""
        self.scored = formula is not None and formula.needs_scored
        self._formula = formula
        self._faulty = False
        self.at_once = self.watches = True

    def step_ends(self, tally: TokenTally) -> None:
        """The first step shows whether the trainer writes into its batches; if it does not, the next ones are kept."""
        if self.watches:
            unchanged = tally.unchanged()
            self.watches, self.at_once = unchanged is None, not unchanged

    def counted(self, tally: TokenTally) -> tuple[TokenCounts, SequenceCounts | None, StepWork | None]:
        """Tokens, sequences and FLOPs."""
        if not self._faulty:
            try:
                work = None if self._formula is None else tally.work(self._formula)
                return tally.counts(), tally.sequences(), work
            except Exception:
                first, self._faulty = not self._faulty, True
                if first:
                    logger.warning("Tokens and FLOPs are no longer counted, because of a fault.", exc_info=True)
        return TokenCounts(), None, None


@dataclass(frozen=True)
class Segment:
    """What the steps of a ``train()`` call share.

    Attributes:
        number: of the call, from 0; a resumed run counts on.
        rank: of the process.
        opened_ns: reading of the clock when it was called.
    """

    number: int
    rank: int
    opened_ns: int


class StepDraft:
    """A step on its way to a record: filled by the thread that trains, worked out by the one that writes.

    One is made in every step. So what is not known yet lies in the class, and costs nothing.

    Attributes:
        segment: whose step it is.
        counting: counts what ``tally`` has seen.
        tally: of the micro-batches.
        micro_batches: how many.
        step, epoch: after the update; None before it.
        loss, learning_rate, grad_norm: that the trainer logged.
        span: its time; None until it has ended.
        memory: of the device.
        times: on the device, until they are read.
        device_seconds: what they told.
        cpu_from_ns, cpu_to_ns: CPU time of the process when the step began and ended; None where it is not asked for.
        waits_ns: of opaque phases, what was communication; None in a run of one process.
        loader_from, loader_to: where the sums of the data loader stood when the step began and ended; None where it is
            not watched.
    """

    micro_batches: int = 0
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    span: Span | None = None
    memory: StepMemory | None = None
    times: DeviceTimes | None = None
    device_seconds: Mapping[str, float] | None = None
    cpu_from_ns: int | None = None
    cpu_to_ns: int | None = None
    waits_ns: Mapping[str, int] | None = None
    loader_to: LoaderMark | None = None
    _record: StepRecord | None = None
    _counted: tuple[TokenCounts, SequenceCounts | None, StepWork | None] | None = None

    def __init__(self, segment: Segment, counting: Counting, loader_from: LoaderMark | None = None) -> None:
        """A step that begins."""
        self.segment, self.counting, self.loader_from = segment, counting, loader_from
        self.tally = TokenTally(counting.scored, counting.at_once)

    def record(self) -> StepRecord:
        """Of a step that has ended, worked out once. Any thread may ask, once the device has told all."""
        if self._record is None:
            assert self.span is not None
            self._record = self._of(self.span)
        return self._record

    def so_far(self, seen: Glimpse, now_ns: int) -> StepRecord:
        """What the record would hold if the step ended now."""
        phases = dict(seen.phase_ns)
        if seen.open_phase is not None:
            phases[seen.open_phase] = phases.get(seen.open_phase, 0) + now_ns - seen.mark_ns
        return self._of(Span(seen.start_ns, now_ns - seen.start_ns, phases))

    def _of(self, span: Span) -> StepRecord:
        assert self.step is not None
        if self._counted is None:  # after the update no micro-batch follows
            self._counted = self.counting.counted(self.tally)
        tokens, sequences, work = self._counted
        return StepRecord(
            segment=self.segment.number,
            rank=self.segment.rank,
            step=self.step,
            epoch=self.epoch,
            wall_seconds=span.wall_ns / 1e9,
            started_at_seconds=(span.start_ns - self.segment.opened_ns) / 1e9,
            phase_seconds=_seconds(span.phase_ns),
            micro_batches=self.micro_batches,
            tokens=tokens,
            sequences=sequences,
            work=work,
            memory=self.memory,
            device_seconds=self.device_seconds,
            loader=self._loader(),
            cpu_seconds=self._cpu_seconds(),
            waited_seconds=_seconds(self.waits_ns) if self.waits_ns else None,
            loss=self.loss,
            learning_rate=self.learning_rate,
            grad_norm=self.grad_norm,
        )

    def _cpu_seconds(self) -> float | None:
        if self.cpu_from_ns is None or self.cpu_to_ns is None:
            return None
        return (self.cpu_to_ns - self.cpu_from_ns) / 1e9

    def _loader(self) -> StepLoader | None:
        if self.loader_from is None or self.loader_to is None:
            return None
        return step_loader(self.loader_from, self.loader_to)


def _seconds(of: Mapping[str, int]) -> dict[str, float]:
    return {name: value / 1e9 for name, value in of.items()}


_json = msgspec.json.Encoder()


def encode_draft(draft: StepDraft) -> bytes:
    """The line of a step that has ended. Its numbers are finite, or words: msgspec would write null for others."""
    return _json.encode(draft.record().to_json())


_P = ParamSpec("_P")
_NO_PHASE: AbstractContextManager[None] = nullcontext()
_MOST_UNWRITTEN = 64
"""Records that wait for the device; one more is written without what it was to tell."""


def _never_raises(
    method: Callable[Concatenate[StepRecorder, _P], None],
) -> Callable[Concatenate[StepRecorder, _P], None]:
    """Does nothing while nothing is recorded; a fault is logged once and ends the recording.

    Not for what every step calls, between kernels and with cold caches: that catches its faults itself, a call less.
    """

    @functools.wraps(method)
    def guarded(self: StepRecorder, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self.recording:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    return guarded


class StepRecorder:
    """Writes one StepRecord per optimizer step.

    The order of calls: ``open``, then per step ``next_step`` (which ends the previous one), ``add_batches``,
    phases, ``step_done``, phases of the trailing work; in the end ``end_loop`` and ``close``. No method
    raises, and none waits for a device except ``close``.

    Attributes:
        begin, end: of ``StepPhases`` while a loop is recorded, nothing else.
        phase: the same for its ``context``; outside the loop a phase of the process.
        marks: of ``StepPhases`` while a loop is recorded, ``NO_MARKS`` else.
        begun: the phases that ``begin`` opened and nobody has ended, while a loop is recorded.
        timeline: is told what lies outside the training loop; None: nobody is.
        recording: whether steps are.
        has_device: a device keeps a time of its own, for which the host may have to wait.
        several_ranks: processes train together, so that a rank's own work is told from its waits for the others.
    """

    def __init__(self, now: Callable[[], int] | None = None, timeline: Timeline | None = None) -> None:
        """Nothing is recorded before ``open``.

        Args:
            now: a monotonic clock in nanoseconds; default: the timeline's.
            timeline: is told what lies outside the training loop, and where the loop starts and ends.
        """
        self.timeline = timeline
        self.recording = self.has_device = False
        self.marks = NO_MARKS
        self.begun: Collection[PhaseName] = ()
        self.begin: Callable[..., object] = _no_phase
        self.end: Callable[..., object] = _no_phase
        self.phase: Callable[..., AbstractContextManager[None]] = self._phase_outside
        self.several_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self._faulty = False
        self._now = now or (time.perf_counter_ns if timeline is None else timeline.now)
        self._stream: JsonlStream | None = None
        self._segment = Segment(0, 0, 0)
        self._counting = Counting()
        self._loader = LoaderWatch()
        self._draft = self._nothing()
        self._phases: StepPhases | None = None
        self._device: DeviceWatch | None = None
        self._compilation = CompilationWatch(self._compiling, self._in_backward)
        self._collectives = CollectiveWatch(self._waiting) if self.several_ranks else None
        self._unwritten: deque[StepDraft] = deque()
        self._live: LiveRun | None = None

    @property
    def clock(self) -> PhaseClock | None:
        """Of the training loop; None outside one."""
        return None if self._phases is None else self._phases.clock

    def open(self, directory: Path, rank: int, device: DeviceWatch | None = None) -> None:
        """Start a segment in ``directory/steps.jsonl`` (``steps.rankN.jsonl`` on rank N > 0).

        Args:
            directory: of the run.
            rank: of the process.
            device: is told the phases; None: there is none that keeps a time of its own.
        """
        self.recording, self._faulty = True, False
        self._device, self.has_device = device, device is not None
        self._open(directory, rank)

    @_never_raises
    def _open(self, directory: Path, rank: int) -> None:
        path = records_path(directory, "steps", rank)
        previous = last_record(path, "segment")
        number = 0 if previous is None else int(previous.get("segment", -1)) + 1
        latch = None if self.timeline is None else self.timeline.latch
        self._stream = JsonlStream(path, latch=latch, encode=encode_draft)
        self._segment = Segment(number, rank, self._now())
        self._draft = self._nothing()
        if self.timeline is not None:
            self.timeline.train_begins(number, self._segment.opened_ns, self.close)
            self._live = self.timeline.live = LiveRun(self.timeline, RunningFigures(self.timeline.earlier))

    @_never_raises
    def count_work(self, formula: WorkFormula | None) -> None:
        """The FLOPs of the steps from here on; None: they are not known."""
        self._counting = Counting(formula)
        if not self._draft.micro_batches:
            self._draft = self._nothing(self._draft.loader_from)

    @_never_raises
    def watch_loader(self, loader: Any) -> None:
        """The training takes its batches from this one, a ``DataLoader`` of torch, also as accelerate wraps it.

        Args:
            loader: None: it is not known.
        """
        state = functools.partial(self.timeline.state, "loader") if self.timeline is not None else _to_nobody
        if loader is not None:
            watch_stated(self._loader, loader, state)
            self._draft.loader_from = self._loader.mark()

    @_never_raises
    def start_loop(self) -> None:
        """The training loop starts here, unless it has started already."""
        if self._phases is None:
            if self.timeline is not None:
                self.timeline.loop_begins()
            self._phases = phases = StepPhases(self._now, self._device, self._fault)
            self.begin, self.end, self.phase, self.marks = phases.begin, phases.end, phases.context, phases.marks
            self.begun = phases.begun
            self._compilation.install()
            if self._collectives is not None:
                self._collectives.install()
            if self.timeline is not None:
                self.timeline.watch(self._phases.clock)

    @_never_raises
    def abandon_step(self) -> None:
        """The loop starts over (it was out of memory): forget what the unfinished step had fetched."""
        if self._draft.step is None:
            self._draft = self._nothing(self._draft.loader_from)
            if self._phases is not None:
                self._phases.abandon()

    def next_step(self) -> None:
        """The trailing work of a step that is done ends here, and the next step starts; what has begun ends."""
        if not self.recording:
            return
        try:
            if self._phases is None:
                self.start_loop()
            elif self._draft.step is not None:
                self._cut(self._phases)
            else:
                self._phases.end_all()
            self._write(wait=False)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    def add_batches(self, batches: Sequence[Any]) -> None:
        """The micro-batches fetched for the step under way."""
        if not self.recording:
            return
        try:
            self._draft.micro_batches += len(batches)
            for batch in batches:
                self._draft.tally.add(batch)
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    @_never_raises
    def add_micro_batch(self) -> None:
        """One more micro-batch of the step under way, whose tokens are not known."""
        self._draft.micro_batches += 1

    def step_done(self, step: int, epoch: float | None) -> None:
        """The optimizer has stepped, and what has begun ends; what follows is trailing work of this step."""
        if not self.recording:
            return
        if self.begun and self._phases is not None:
            self._phases.end_all()
        draft = self._draft
        draft.step, draft.epoch = step, epoch

    @_never_raises
    def logged(self, logs: Mapping[str, Any]) -> None:
        """The trainer read loss, learning rate and gradient norm of the step that is done, for a log of its own."""
        if self._draft.step is not None:
            self._draft.loss, self._draft.learning_rate, self._draft.grad_norm = map(
                functools.partial(_number, logs), ("loss", "learning_rate", "grad_norm")
            )

    def under_way(self) -> StepRecord | None:
        """What the record of the step under way would hold now; None while its update or its token counts lack.

        For logs: waits for nothing, and leaves the record as it will be.
        """
        if not self.recording or self._phases is None or self._draft.step is None or not self._draft.tally.ready():
            return None
        return self._draft.so_far(self._phases.clock.glimpse(), self._now())

    @_never_raises
    def write_ready(self) -> None:
        """Queue the records whose figures have arrived by now; waits for nothing."""
        self._write(wait=False)

    @_never_raises
    def end_loop(self) -> None:
        """The training loop ends here; a step that is not done leaves no record, but its time is told."""
        self._remove_watches()
        if self._draft.step is not None and self._phases is not None:
            self._cut(self._phases)
        elif self._phases is not None and self.timeline is not None:
            self.timeline.unfinished_step(self._phases.clock.cut())
        self._write(wait=False)
        self._leave_loop()
        if self.timeline is not None:
            self.timeline.loop_ends()

    def close(self, error: BaseException | None = None) -> None:
        """End the segment: whatever was recorded is in the file afterwards.

        Args:
            error: what ended the training.
        """
        self._remove_watches()
        self.end_loop()
        self._loader.close()
        self._write_all()
        self.recording = False
        self._leave_loop()
        if self.timeline is not None and self._live is not None:
            self.timeline.loop_ends()  # also after a fault
            self.timeline.train_ends(error)
            if self.timeline.live is self._live:
                self.timeline.live = None
            self._live = None
        self._unwritten.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _compiling(self) -> AbstractContextManager[None]:
        if not self._compilation.tells_backward and self.timeline is not None:
            why = "torch tells it since 2.8; it is in `backward`"
            self.timeline.state("compilation", {"missing": [{"what": "compilation of the backward", "why": why}]})
        return self.phase("compilation")

    def _waiting(self) -> AbstractContextManager[None]:
        return _NO_PHASE if not self.recording or self._phases is None else self._phases.wait()

    def _remove_watches(self) -> None:
        self._compilation.remove()
        if self._collectives is not None:
            self._collectives.remove()

    def _in_backward(self) -> bool:
        return self.clock is not None and self.clock.glimpse().open_phase in ("backward", "forward_backward")

    def _leave_loop(self) -> None:
        self._tell_nobody()
        self._phases = None

    def _tell_nobody(self) -> None:
        """Of the phases of steps."""
        if self._phases is not None:
            self._phases.is_over = True
        self.begin = self.end = _no_phase
        self.phase, self.marks, self.begun = self._phase_outside, NO_MARKS, ()

    def _phase_outside(self, name: PhaseName, *, opaque: bool = False) -> AbstractContextManager[None]:
        """A phase of the process; none after a fault, since nobody knows what its time belongs to."""
        return _NO_PHASE if self.timeline is None or self._faulty else self.timeline.phase(name, opaque=opaque)

    def _cut(self, phases: StepPhases) -> None:
        draft = self._draft
        draft.span, draft.times, draft.memory = phases.cut()
        if self._counting.watches:
            self._counting.step_ends(draft.tally)
        draft.loader_to = mark = self._loader.mark()
        self._unwritten.append(draft)
        self._draft = StepDraft(self._segment, self._counting, mark)
        if self.several_ranks:
            draft.waits_ns = phases.take_waits()
            # Of all threads; asked where ranks wait for each other, since one that waits computes nothing.
            draft.cpu_to_ns = self._draft.cpu_from_ns = time.process_time_ns()

    @_never_raises
    def _write_all(self) -> None:
        self._write(wait=True)

    def _write(self, wait: bool) -> None:
        """Queue the steps whose token counts and times on the device have arrived, in order."""
        while self._unwritten:
            draft = self._unwritten[0]
            tally, times = draft.tally, draft.times
            if wait:
                tally.wait()
            if tally.events and not tally.ready():
                return
            if times is not None:
                patient = not wait and len(self._unwritten) <= _MOST_UNWRITTEN
                if patient and not times.ready():
                    return
                draft.device_seconds, draft.times = times.read(), None
            self._unwritten.popleft()
            if self._stream is not None:
                self._stream.write(draft)
            if self._live is not None:
                self._live.figures.add_later(draft)

    def _nothing(self, loader: LoaderMark | None = None) -> StepDraft:
        """A step of which nothing is known yet, but where the data loader's sums stood."""
        return StepDraft(self._segment, self._counting, loader)

    def _fault(self) -> None:
        """End the recording, with one warning of the exception that is handled."""
        if not self.recording:
            return
        self.recording, self._faulty = False, True
        self._tell_nobody()
        if self.timeline is not None:  # whose time is not attributed from here on
            self.timeline.loop_ends()
            self.timeline.leave_all()
        logger.warning("Steps are no longer recorded, because of a fault; training goes on.", exc_info=True)


def _no_phase(*_: Any, **__: Any) -> None:
    """Where no phase is told."""


def _to_nobody(facts: Mapping[str, Any]) -> None:
    """Where nobody keeps facts."""


def _number(logs: Mapping[str, Any], name: str) -> float | None:
    """None where it is not there, or somebody logs a text."""
    value = logs.get(name)
    return float(value) if isinstance(value, Real) else None


class RunLog:
    """Belongs to whoever records the run's steps; no method raises, all do nothing where nothing is recorded."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._timeline = recorder.timeline
        self._faulty = False

    def now_seconds(self) -> float:
        """A reading of the clock, to measure a duration by."""
        return 0.0 if self._timeline is None else self._timeline.now_seconds()

    def evaluated(self, step: int, seconds: float, metrics: Mapping[str, float | None]) -> None:
        """An evaluation is done, in a ``train()`` call or outside."""
        if self._timeline is not None:
            self._timeline.note("evaluation", step=step, seconds=round(seconds, 6), metrics=dict(metrics))
            if self._timeline.live is not None:
                self._timeline.live.figures.evaluations.add(step, seconds)

    def saved(self, step: int, seconds: float) -> None:
        """A checkpoint is written."""
        if self._timeline is not None:
            self._timeline.note("save", step=step, seconds=round(seconds, 6))
            if self._timeline.live is not None:
                self._timeline.live.figures.saves.add(step, seconds)

    def figures(self, step: int, *, whole: bool = False) -> dict[str, float]:
        """What a log may carry, by key (see ``measure/log_figures.py``); nothing outside a ``train()`` call.

        Args:
            step: optimizer steps done.
            whole: of the whole call, which is over, rather than since the log before.
        """
        live = None if self._timeline is None else self._timeline.live
        if live is None or self._faulty or not self._recorder.recording:
            return {}
        try:
            if whole:
                self._recorder.write_ready()
                return log_figures(live.figures.whole(), live, None, WHOLE_PREFIX)
            return log_figures(live.figures.take_window(self._recorder.under_way()), live, live.outlook(step))
        except Exception:
            self._faulty = True
            logger.warning("The logs carry no figures any more, because of a fault; training goes on.", exc_info=True)
            return {}
