"""What is known of an optimizer step, from its first micro-batch to its record."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hf_efficient.estimate.step_work import WorkFormula
from hf_efficient.measure.device_clock import DeviceTimes
from hf_efficient.measure.loader.marks import LoaderMark, step_loader
from hf_efficient.measure.phases import Glimpse, Span
from hf_efficient.measure.tokens import TokenTally
from hf_efficient.records import SequenceCounts, StepLoader, StepMemory, StepRecord, StepWork, TokenCounts

__all__ = ["Counting", "Segment", "StepDraft", "encode_draft"]

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
