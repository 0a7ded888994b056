"""From phases, tokens and steps to step records in a file; knows no trainer."""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from hf_efficient.account.reading import last_record, records_path
from hf_efficient.estimate.step_work import WorkFormula
from hf_efficient.measure.compilation import CompilationWatch
from hf_efficient.measure.device import DeviceWatch
from hf_efficient.measure.device_clock import DeviceTimes
from hf_efficient.measure.live import LiveRun
from hf_efficient.measure.phases import PhaseClock, PhaseContext, Span
from hf_efficient.measure.running import RunningFigures
from hf_efficient.measure.stream import JsonlStream
from hf_efficient.measure.timeline import Timeline
from hf_efficient.measure.tokens import TokenTally
from hf_efficient.records import CoarsePhase, PhaseName, StepMemory, StepPhase, StepRecord

__all__ = ["StepRecorder"]

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_NO_PHASE: AbstractContextManager[None] = nullcontext()
_MOST_UNWRITTEN = 64
"""Records that wait for the device; one more is written without what it was to tell."""


def _never_raises(
    method: Callable[Concatenate[StepRecorder, _P], None],
) -> Callable[Concatenate[StepRecorder, _P], None]:
    """Does nothing while nothing is recorded; a fault is logged once and ends the recording."""

    @functools.wraps(method)
    def guarded(self: StepRecorder, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if not self.recording:
            return
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.recording, self._faulty = False, True
            if self.timeline is not None:  # whose time is not attributed from here on
                self.timeline.loop_ends()
                self.timeline.leave_all()
            logger.warning("Steps are no longer recorded, because of a fault; training goes on.", exc_info=True)

    return guarded


@dataclass
class _Update:
    """What is known of the step under way."""

    micro_batches: int
    tally: TokenTally
    step: int | None = None
    epoch: float | None = None
    loss: float | None = None


class StepRecorder:
    """Writes one StepRecord per optimizer step.

    The order of calls: ``open``, then per step ``next_step`` (which ends the previous one), ``add_batches``,
    phases, ``step_done``, phases of the trailing work; in the end ``end_loop`` and ``close``. No method
    raises, and none waits for a device except ``close``.
    """

    def __init__(self, now: Callable[[], int] | None = None, timeline: Timeline | None = None) -> None:
        """Nothing is recorded before ``open``.

        Args:
            now: a monotonic clock in nanoseconds; default: the timeline's.
            timeline: is told what lies outside the training loop, and where the loop starts and ends.
        """
        self.timeline = timeline
        self.recording = False
        self.clock: PhaseClock | None = None
        self._faulty = False
        self._now = now or (time.perf_counter_ns if timeline is None else timeline.now)
        self._stream: JsonlStream | None = None
        self._rank = self._segment = self._opened_ns = 0
        self._formula: WorkFormula | None = None
        self._update = self._nothing()
        self._tokens: dict[str, int] = {}
        self._device: DeviceWatch | None = None
        self._compilation = CompilationWatch(self._compiling, self._in_backward)
        self._unwritten: deque[tuple[StepRecord, TokenTally, DeviceTimes | None]] = deque()
        self._live: LiveRun | None = None

    def open(self, directory: Path, rank: int, device: DeviceWatch | None = None) -> None:
        """Start a segment in ``directory/steps.jsonl`` (``steps.rankN.jsonl`` on rank N > 0).

        Args:
            directory: of the run.
            rank: of the process.
            device: is told the phases; None: there is none that keeps a time of its own.
        """
        self.recording, self._faulty = True, False
        self._device = device
        self._open(directory, rank)

    @_never_raises
    def _open(self, directory: Path, rank: int) -> None:
        path = records_path(directory, "steps", rank)
        previous = last_record(path)
        self._segment = 0 if previous is None else int(previous.get("segment", -1)) + 1
        self._rank = rank
        self._stream = JsonlStream(path, latch=None if self.timeline is None else self.timeline.latch)
        self._update = self._nothing()
        self._opened_ns = self._now()
        if self.timeline is not None:
            self.timeline.train_begins(self._segment, self._opened_ns)
            self._live = self.timeline.live = LiveRun(self.timeline, RunningFigures(self.timeline.earlier))

    @_never_raises
    def count_work(self, formula: WorkFormula | None) -> None:
        """The FLOPs of the steps from here on; None: they are not known."""
        self._formula = formula
        if not self._update.micro_batches:
            self._update = self._nothing()

    @_never_raises
    def start_loop(self) -> None:
        """The training loop starts here, unless it has started already."""
        if self.clock is None:
            if self.timeline is not None:
                self.timeline.loop_begins()
            self.clock = PhaseClock(self._now)
            self._compilation.install()
            if self.timeline is not None:
                self.timeline.watch(self.clock)

    @_never_raises
    def abandon_step(self) -> None:
        """The loop starts over (it was out of memory): forget what the unfinished step had fetched."""
        if self._update.step is None:
            self._update = self._nothing()
            if self._device is not None:
                self._device.cut()

    def phase(self, name: PhaseName, *, opaque: bool = False) -> AbstractContextManager[None]:
        """A context in which the time belongs to ``name``, of the step or, outside the loop, of the process."""
        if not self.recording or self.clock is None:
            return _NO_PHASE if self.timeline is None or self._faulty else self.timeline.phase(name, opaque=opaque)
        return PhaseContext(self, name, opaque)

    @_never_raises
    def open_phase(self, phase: PhaseContext) -> None:
        """For ``PhaseContext``."""
        if self.clock is not None:
            phase.token = self.clock.enter(phase.name, opaque=phase.opaque)
            if self._device is not None and phase.token:
                self._device.enter(phase.name)

    @_never_raises
    def close_phase(self, phase: PhaseContext) -> None:
        """For ``PhaseContext``."""
        if self.clock is not None:
            if self._device is not None and phase.token:
                self._device.leave(phase.name)
            self.clock.leave(phase.token)

    @_never_raises
    def begin(self, name: StepPhase | CoarsePhase) -> None:
        """Open a phase that ``end`` closes, where start and end are seen by different callers."""
        if self.clock is not None:
            token = self._tokens[name] = self.clock.enter(name)
            if self._device is not None and token:
                self._device.enter(name)

    @_never_raises
    def end(self, name: StepPhase | CoarsePhase) -> None:
        """Close the phase that ``begin`` opened; does nothing where it is not open."""
        token = self._tokens.pop(name, None)
        if token is not None and self.clock is not None:
            if self._device is not None and token:
                self._device.leave(name)
            self.clock.leave(token)

    @_never_raises
    def next_step(self) -> None:
        """The trailing work of a step that is done ends here, and the next step starts."""
        self.start_loop()
        if self._update.step is not None:
            self._cut()
        self._write(wait=False)

    @_never_raises
    def add_batches(self, batches: Iterable[Any]) -> None:
        """The micro-batches fetched for the step under way."""
        for batch in batches:
            self._update.micro_batches += 1
            self._update.tally.add(batch)

    @_never_raises
    def add_micro_batch(self) -> None:
        """One more micro-batch of the step under way, whose tokens are not known."""
        self._update.micro_batches += 1

    @_never_raises
    def step_done(self, step: int, epoch: float | None) -> None:
        """The optimizer has stepped; what follows is trailing work of this step."""
        self._update.step, self._update.epoch = step, epoch

    @_never_raises
    def loss_logged(self, loss: float) -> None:
        """The trainer read the loss for a log of its own."""
        if self._update.step is not None:
            self._update.loss = float(loss)

    def under_way(self) -> StepRecord | None:
        """What the record of the step under way would hold now; None while its update or its token counts lack.

        For logs: waits for nothing, and leaves the record as it will be.
        """
        if not self.recording or self.clock is None or self._update.step is None or not self._update.tally.ready():
            return None
        seen, now = self.clock.glimpse(), self._now()
        phases = dict(seen.phase_ns)
        if seen.open_phase is not None:
            phases[seen.open_phase] = phases.get(seen.open_phase, 0) + now - seen.mark_ns
        record = self._record(Span(seen.start_ns, now - seen.start_ns, phases))
        return self._counted(record, self._update.tally)

    @_never_raises
    def write_ready(self) -> None:
        """Queue the records whose figures have arrived by now; waits for nothing."""
        self._write(wait=False)

    @_never_raises
    def end_loop(self) -> None:
        """The training loop ends here; a step that is not done leaves no record, but its time is told."""
        if self._update.step is not None and self.clock is not None:
            self._cut()
        elif self.clock is not None and self.timeline is not None:
            self.timeline.unfinished_step(self.clock.cut())
        self._write(wait=False)
        self.clock = None
        if self.timeline is not None:
            self.timeline.loop_ends()

    def close(self) -> None:
        """End the segment: whatever was recorded is in the file afterwards."""
        self._compilation.remove()
        self.end_loop()
        self._write_all()
        self.recording = False
        self.clock = None
        if self.timeline is not None and self._live is not None:
            self.timeline.loop_ends()  # also after a fault
            if self.timeline.live is self._live:
                self.timeline.live = None
            self._live = None
        self._tokens.clear()
        self._unwritten.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _compiling(self) -> AbstractContextManager[None]:
        if not self._compilation.tells_backward and self.timeline is not None:
            why = "torch tells it since 2.8; it is in `backward`"
            self.timeline.state("compilation", {"missing": [{"what": "compilation of the backward", "why": why}]})
        return self.phase("compilation")

    def _in_backward(self) -> bool:
        return self.clock is not None and self.clock.glimpse().open_phase in ("backward", "forward_backward")

    def _cut(self) -> None:
        assert self.clock is not None
        times, memory = (None, None) if self._device is None else self._device.cut()
        self._unwritten.append((self._record(self.clock.cut(), memory), self._update.tally, times))
        self._update = self._nothing()

    def _record(self, span: Span, memory: StepMemory | None = None) -> StepRecord:
        assert self._update.step is not None
        return StepRecord(
            segment=self._segment,
            rank=self._rank,
            step=self._update.step,
            epoch=self._update.epoch,
            wall_seconds=span.wall_ns / 1e9,
            started_at_seconds=(span.start_ns - self._opened_ns) / 1e9,
            phase_seconds={name: value / 1e9 for name, value in span.phase_ns.items()},
            micro_batches=self._update.micro_batches,
            memory=memory,
            loss=self._update.loss,
        )

    @_never_raises
    def _write_all(self) -> None:
        self._write(wait=True)

    def _write(self, wait: bool) -> None:
        """Queue the records whose token counts and times on the device have arrived, in order."""
        while self._unwritten:
            record, tally, times = self._unwritten[0]
            patient = not wait and len(self._unwritten) <= _MOST_UNWRITTEN
            if not (wait or tally.ready()) or (patient and times is not None and not times.ready()):
                return
            self._unwritten.popleft()
            told = self._counted(record, tally)
            self._hand_on(told if times is None else replace(told, device_seconds=times.read()))

    def _counted(self, record: StepRecord, tally: TokenTally) -> StepRecord:
        work = None if self._formula is None else tally.work(self._formula)
        return replace(record, tokens=tally.counts(), sequences=tally.sequences(), work=work)

    def _hand_on(self, record: StepRecord) -> None:
        if self._stream is not None:
            self._stream.write(record.to_json())
        if self._live is not None:
            self._live.figures.add(record)

    def _nothing(self) -> _Update:
        """A step of which nothing is known yet."""
        return _Update(0, TokenTally(scored=self._formula is not None and self._formula.needs_scored))
