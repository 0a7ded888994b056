"""From phases and micro-batches to step records; knows no trainer."""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from hf_efficient.estimate.flops import WorkFormula
from hf_efficient.facts.environment import environment_facts
from hf_efficient.recording.compilation import CompilationWatch
from hf_efficient.recording.device import DeviceTimes, DeviceWatch, watch_device
from hf_efficient.recording.events import Span
from hf_efficient.recording.guard import guard
from hf_efficient.recording.holders import Held, Holders, held_seconds
from hf_efficient.recording.live import WHOLE_PREFIX, LiveRun, RunningFigures, log_figures
from hf_efficient.recording.loader import LoaderMark, LoaderWatch, step_loader, watch_stated
from hf_efficient.recording.ranks import CollectiveWatch
from hf_efficient.recording.run_files import Way, in_seconds
from hf_efficient.recording.timeline import Timeline, open_run
from hf_efficient.recording.tokens import TokenTally
from hf_efficient.records import steps as rec

logger = logging.getLogger(__name__)


class Counting:
    """Counts what a step's micro-batches come to, with a formula also in FLOPs."""

    def __init__(self, formula: WorkFormula | None = None) -> None:
        self.broken = False
        self.formula = formula
        self.scored = formula is not None and formula.needs_scored

    @guard("Tokens and FLOPs are no longer counted")
    def counted(self, tally: TokenTally) -> tuple[rec.TokenCounts, rec.SequenceCounts | None, rec.StepWork | None]:
        work = None if self.formula is None else tally.work(self.formula)
        return tally.counts(), tally.sequences(), work


@dataclass(frozen=True)
class Segment:
    """What the steps of a ``train()`` call share: number of the call in the file, rank, and when it was called."""

    number: int = 0
    rank: int = 0
    opened_ns: int = 0


class StepDraft:
    """A step on its way to a record: filled by the thread that trains, worked out by the one that writes."""

    micro_batches = 0
    step: int | None = None
    epoch: float | None = None
    memory: rec.StepMemory | None = None
    times: DeviceTimes | None = None
    device_seconds: Mapping[str, float] | None = None
    cpu_from_ns: int | None = None
    cpu_to_ns: int | None = None
    loader_to: LoaderMark | None = None
    _counted: tuple[rec.TokenCounts, rec.SequenceCounts | None, rec.StepWork | None] | None = None

    def __init__(self, segment: Segment, counting: Counting, loader_from: LoaderMark | None = None) -> None:
        self.segment, self.counting, self.loader_from = segment, counting, loader_from
        self.tally = TokenTally(counting.scored)
        self.logged: dict[str, Any] = {}
        self.held_ns: Held = {}

    def ready(self, *, wait: bool, patient: bool) -> bool:
        """Whether its figures have arrived from the device: ``wait`` until they have; not ``patient``: without them."""
        if wait:
            self.tally.wait()
        if not self.tally.ready():
            return False
        if self.times is not None:
            if patient and not wait and not self.times.ready():
                return False
            self.device_seconds, self.times = self.times.read(), None
        return True

    def record(self, span: Span) -> rec.StepRecord:
        """What it came to; before it has ended, what it would come to if it ended with the span."""
        assert self.step is not None
        if self._counted is None:  # after the update no micro-batch follows
            self._counted = self.counting.counted(self.tally) or (rec.TokenCounts(), None, None)
        tokens, sequences, work = self._counted
        cpu_ns = None if self.cpu_from_ns is None or self.cpu_to_ns is None else self.cpu_to_ns - self.cpu_from_ns
        begins, ends, wall_ns = self.loader_from, self.loader_to, span.end_ns - span.start_ns
        return rec.StepRecord(
            segment=self.segment.number,
            rank=self.segment.rank,
            step=self.step,
            epoch=self.epoch,
            wall_seconds=wall_ns / 1e9,
            started_at_seconds=(span.start_ns - self.segment.opened_ns) / 1e9,
            phase_seconds=in_seconds(span.phase_ns),
            micro_batches=self.micro_batches,
            tokens=tokens,
            sequences=sequences,
            work=work,
            memory=self.memory,
            device_seconds=self.device_seconds,
            loader=None if begins is None or ends is None else step_loader(begins, ends),
            cpu_seconds=None if cpu_ns is None else cpu_ns / 1e9,
            waited_seconds=in_seconds(span.waits_ns) or None,
            held_seconds=held_seconds(self.held_ns, wall_ns // 1000) or None,
            **self.logged,
        )


_SPEED = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


def metrics_to_note(metrics: Mapping[str, Any], prefix: str = "eval") -> dict[str, float | None]:
    """The numbers of an evaluation without their prefix and without its speed; None for what is not finite."""
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        short = name.removeprefix(f"{prefix}_")
        if isinstance(value, Real) and short != "epoch" and not short.endswith(_SPEED):
            found[short] = float(value) if math.isfinite(value) else None
    return found


def _evaluated_rows(metrics: Mapping[str, Any], prefix: str) -> int | None:
    """By transformers' own rate, which has three decimals."""
    seconds, rate = (metrics.get(f"{prefix}_{name}") for name in ("runtime", "samples_per_second"))
    return round(seconds * rate) if isinstance(seconds, float) and isinstance(rate, (int, float)) else None


_guarded = guard("Steps are no longer recorded", then=lambda recorder: recorder.stop_telling())


class StepRecorder:
    """Writes one StepRecord per optimizer step, on ``no_timeline`` none. Call ``open``, then per step ``next_step``
    (which ends the previous one), ``add_batches``, phases and marks, ``step_done``; at the end ``end_loop`` and
    ``close``. No method raises, and only ``close`` waits for a device."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.log = timeline.log
        self.holders = Holders(self.log)
        self.broken = self.recording = self.has_device = False
        self.several_ranks = int(os.environ.get("WORLD_SIZE", "1")) > 1
        self._segment = Segment()
        self._counting = Counting()
        self._loader = LoaderWatch()
        self._draft = self._nothing()
        self._device: DeviceWatch | None = None
        self._watches: list[CompilationWatch | CollectiveWatch] = [CompilationWatch(self.log)]
        if self.several_ranks:
            self._watches.append(CollectiveWatch(self.log))
        self._live: LiveRun | None = None
        self._figures_broken = False

    def phase(self, name: rec.PhaseName, *, opaque: bool = False) -> AbstractContextManager[None]:
        """In it the time belongs to ``name``, in the loop and outside; not in the loop of somebody else."""
        return self.log.phase(name, opaque=opaque) if self.recording or not self.log.in_loop else nullcontext()

    def mark(self, phase: rec.PhaseName | None) -> rec.PhaseName | None:
        """From here on the time belongs to this phase of the loop; returns the one before, to go back to."""
        return self.log.mark(phase) if self.recording else None

    @property
    def in_loop(self) -> bool:
        return self.recording and self.log.in_loop

    def begin(
        self,
        directory: Path,
        rank: int,
        world_size: int,
        way: Way,
        *,
        resumed: bool,
        rates: Mapping[str, Mapping[str, Any]],
        device: torch.device,
        memory: bool,
        phase: rec.PhaseName = "trainer_setup",
    ) -> None:
        """A ``train()`` begins: open its run, state what it costs and runs on, and start a segment of steps. ``rates``
        are the facts ``price`` and ``grid``, which a recipe's run has stated. ``memory``: the allocator's peaks may be
        reset. The time until the loop belongs to ``phase``."""
        timeline = self.timeline
        open_run(timeline, directory, rank, world_size, way, resumed=resumed)
        if self.recording:  # a training that never ended
            self.close()
        if timeline.broken:
            return
        if timeline.way != "recipe":
            for topic, stated in rates.items():
                timeline.state(topic, stated)
            timeline.state_later("environment", environment_facts)
        timeline.enter(phase)
        self.broken = False
        self.open(watch_device(device, memory=memory))

    def end(self, error: BaseException | None = None) -> None:
        """It is over, and with it the run, unless it is a recipe's, which has more to do and ends itself."""
        self.close(error)
        self.log.end_phases()
        self.timeline.note_memory()
        if self.timeline.way != "recipe":
            self.timeline.end(error)

    @_guarded
    def open(self, device: DeviceWatch | None = None) -> None:
        """A ``train()`` begins in the run that holds the timeline, on a device that keeps a time of its own, if any."""
        timeline, files = self.timeline, self.timeline.files
        if timeline.broken or files is None:
            return
        self.recording, self._device, self.has_device = True, device, device is not None
        self._segment = Segment(files.next_segment(), files.rank, self.log.now())
        self._draft = self._nothing()
        timeline.train_begins(self._segment.number, self._segment.opened_ns, lambda at_ns: self.close(at_ns=at_ns))
        figures = RunningFigures(timeline.earlier, files.fold)
        files.on_step = figures.add
        self._live = timeline.live = LiveRun(timeline, figures)

    @_guarded
    def count_work(self, formula: WorkFormula | None) -> None:
        """The FLOPs of the steps from here on; None: they are not known."""
        self._counting = Counting(formula)
        if not self._draft.micro_batches:
            self._draft = self._nothing(self._draft.loader_from)
        elif formula is None:
            self._draft.counting = self._counting

    @_guarded
    def watch_loader(self, loader: Any) -> None:
        """The training takes its batches from this ``DataLoader``, also as accelerate wraps it; None: not known."""
        if loader is not None and self.recording:
            watch_stated(self._loader, loader, functools.partial(self.timeline.state, "loader"))
            self._draft.loader_from = self._loader.mark()

    @_guarded
    def start_loop(self) -> None:
        if self.recording and not self.log.in_loop:
            self.log.loop(True, self._device)
            self.holders.take()
            for watch in self._watches:
                watch.install()

    @_guarded
    def abandon_step(self) -> None:
        """The loop starts over (it was out of memory): forget what the unfinished step had fetched."""
        if self._draft.step is None:
            self._draft = self._nothing(self._draft.loader_from)
            self.log.mark(None)
            if self._device is not None and self.log.in_loop:
                self._device.cut()

    @_guarded
    def next_step(self) -> None:
        """The trailing work of a step that is done ends here, and the next step starts."""
        if not self.recording:
            return
        if not self.log.in_loop:
            self.start_loop()
        elif self._draft.step is not None:
            self._cut()

    @_guarded
    def add_batches(self, batches: Sequence[Any], *, counted: bool = True) -> None:
        """The micro-batches of a step; those that are not ``counted`` become known to ``add_tokens``."""
        if self.recording:
            self._draft.micro_batches += len(batches)
            for batch in batches if counted else ():
                self._draft.tally.add(batch)

    @_guarded
    def add_tokens(self, batch: Any) -> None:
        if self.recording:
            self._draft.tally.add(batch)

    def add_micro_batch(self) -> None:
        """One more micro-batch of the step under way, whose tokens are not known."""
        self._draft.micro_batches += 1

    def step_done(self, step: int, epoch: float | None) -> None:
        """The optimizer has stepped; what follows is trailing work of this step."""
        self._draft.step, self._draft.epoch = step, epoch

    @_guarded
    def logged(self, logs: Mapping[str, Any]) -> None:
        """The trainer read loss, learning rate and gradient norm of the step that is done, for a log of its own."""
        if self._draft.step is not None:
            names = ("loss", "learning_rate", "grad_norm")
            self._draft.logged = {name: float(v) if isinstance(v := logs.get(name), Real) else None for name in names}
            if held := _preferences(logs):
                self._draft.logged["preferences"] = held

    def evaluated(self, step: int, seconds: float, metrics: Mapping[str, Any], prefix: str = "eval") -> None:
        noted, rows = metrics_to_note(metrics, prefix), _evaluated_rows(metrics, prefix)
        self.timeline.note("evaluation", step=step, seconds=round(seconds, 6), metrics=noted, rows=rows)
        if self.timeline.live is not None:
            self.timeline.live.figures.evaluations.add(step, seconds)

    def saved(self, step: int, seconds: float) -> None:
        self.timeline.note("save", step=step, seconds=round(seconds, 6))
        if self.timeline.live is not None:
            self.timeline.live.figures.saves.add(step, seconds)

    def now_seconds(self) -> float:
        return self.log.now() / 1e9

    def figures(self, step: int, *, whole: bool = False) -> dict[str, float]:
        """What a log may carry (see ``live.log_figures``), since the last one or of the ``whole`` call."""
        live = self.timeline.live
        if live is None or not self.recording or self._figures_broken:
            return {}
        try:
            if whole:
                return log_figures(live.figures.whole(), live, None, WHOLE_PREFIX)
            return log_figures(live.figures.take_window(self.under_way()), live, live.outlook(step))
        except Exception:
            self._figures_broken = True
            logger.warning("The logs carry no figures any more, because of a fault; training continues.", exc_info=True)
            return {}

    def under_way(self) -> rec.StepRecord | None:
        """What the record of the step under way would hold now; None while its update or its token counts lack."""
        draft, files = self._draft, self.timeline.files
        if files is None or not self.in_loop or draft.step is None or not draft.tally.ready():
            return None
        return draft.record(files.so_far())

    @_guarded
    def end_loop(self, at_ns: int | None = None) -> None:
        """The training loop ends here, or did at a reading; a step that is not done leaves no record, but its time."""
        self._remove_watches()
        if not self.in_loop:
            return
        if self._draft.step is not None:
            self._cut(at_ns)
        else:
            self.log.cut(None, at_ns)
        self.log.loop(False, at_ns=at_ns)

    def close(self, error: BaseException | None = None, at_ns: int | None = None) -> None:
        """End the segment: whatever was recorded can be written afterwards."""
        self.end_loop(at_ns)
        self._loader.close()
        self.recording = False
        timeline, live, self._live = self.timeline, self._live, None
        if live is None:
            return
        self.log.loop(False)  # also after a fault
        if timeline.files is not None:
            timeline.files.fold(wait=True)
        timeline.train_ends(error)
        if timeline.live is live:
            timeline.live = None

    def stop_telling(self) -> None:
        """After a fault: the time that follows is not attributed."""
        self.recording = False
        self._remove_watches()
        if self.log.in_loop:
            self.log.loop(False)

    def _remove_watches(self) -> None:
        for watch in self._watches:
            watch.remove()

    def _cut(self, at_ns: int | None = None) -> None:
        draft = self._draft
        if self._device is not None:
            draft.times, draft.memory = self._device.cut() or (None, None)
        draft.loader_to = mark = self._loader.mark()
        draft.held_ns = self.holders.take()
        self._draft = self._nothing(mark)
        if self.several_ranks:
            # Of all threads; asked where ranks wait for each other, since one that waits computes nothing.
            draft.cpu_to_ns = self._draft.cpu_from_ns = time.process_time_ns()
        self.log.cut(draft, at_ns)

    def _nothing(self, loader: LoaderMark | None = None) -> StepDraft:
        return StepDraft(self._segment, self._counting, loader)


def _preferences(logs: Mapping[str, Any]) -> dict[str, float]:
    found = {name: next((logs[one] for one in theirs if one in logs), None) for name, theirs in rec.PREFERENCES.items()}
    known = {name: float(v) for name, v in found.items() if isinstance(v, Real) and math.isfinite(v)}
    return known if "margin" in known else {}
