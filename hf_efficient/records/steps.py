"""The record of an optimizer step, and the phases that the time of a process is split into.

Phases are exclusive: a second belongs to the innermost phase that was open; what no phase claims is ``unattributed``.

    startup     imports, before_trainer (a script's own work before its trainer), model_load, data_preparation,
                planning (the run simulated before it begins), trainer_setup, compilation (inside the steps that
                torch.compile holds up)
    step        data_wait, host_to_device, forward, backward, device_wait (the host reads a micro-batch's loss back, and
                waits for the GPU), optimizer, communication (the host waits for other ranks), bookkeeping (what the
                Trainer itself does between these: its NaN filter, its count of FLOPs, callbacks), logging, evaluation,
                checkpointing
    coarse      what a callback alone can tell of a step: forward_backward, between_steps (data wait and logging)
    closing     merging, outside_trainer (a script's own work after its trainer was built), shutdown
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

SCHEMA_VERSION = 1
"""Version of the records; a reader refuses records that are newer than itself."""

StartupPhase = Literal[
    "imports", "before_trainer", "model_load", "data_preparation", "planning", "trainer_setup", "compilation"
]
StepPhase = Literal[
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "device_wait",
    "optimizer",
    "communication",
    "bookkeeping",
    "logging",
    "evaluation",
    "checkpointing",
]
CoarsePhase = Literal["forward_backward", "between_steps"]
ClosingPhase = Literal["merging", "outside_trainer", "shutdown"]
PhaseName = Literal[StartupPhase, StepPhase, CoarsePhase, ClosingPhase, "unattributed"]

STARTUP_PHASES: tuple[StartupPhase, ...] = get_args(StartupPhase)
STEP_PHASES: tuple[StepPhase, ...] = get_args(StepPhase)
COARSE_PHASES: tuple[CoarsePhase, ...] = get_args(CoarsePhase)
CLOSING_PHASES: tuple[ClosingPhase, ...] = get_args(ClosingPhase)
PHASES: tuple[PhaseName, ...] = (*STARTUP_PHASES, *STEP_PHASES, *COARSE_PHASES, *CLOSING_PHASES, "unattributed")

LoggedFigure = float | Literal["nan", "inf", "-inf"] | None
"""What the Trainer logged; JSON has no number for one that is not finite."""


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """Tokens counted three ways; None where a batch does not tell.

    Attributes:
        processed: positions that the model computed, padding included.
        loss_bearing: positions with a label (``labels != -100``); for preference data the completion's tokens.
    """

    processed: int | None = None
    non_padding: int | None = None
    loss_bearing: int | None = None


class SequenceCounts(msgspec.Struct, frozen=True, gc=False):
    """The sequences that a step computed, summed over its micro-batches on one rank.

    Attributes:
        rows: rows of the batches; a padding-free batch is one row.
        documents: sequences that attend to themselves alone; a row without packing holds one.
        shortest, longest: tokens of a document, without padding.
        length_buckets: documents by length: upper bound of a bucket in tokens, as text, to how many are in it.
    """

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: Mapping[str, int] = {}


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """FLOPs of a step on one rank (see ``estimate/flops.py``).

    ``model_flops``: what the mathematics needs; ``hardware_flops``: what is computed: padding, masked pairs and
    recompute included, None where that is not known.
    """

    model_flops: int
    hardware_flops: int | None


class StepMemory(msgspec.Struct, frozen=True, gc=False):
    """Memory of the CUDA device over a step on one rank, from the allocator's books on the host.

    ``allocation_retries``: times since the start of the process that the allocator had to free its cache.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: Mapping[str, int] = {}
    allocation_retries: int = 0


class StepLoader(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the data loader did during a step on one rank.

    The trainer takes batches ahead of the step that trains on them, so those of a step are not all its own. Loading is
    summed over the processes that load: in the process that trains it is a part of ``wait_seconds``; workers load
    beside the training, and what they have done since the step before counts here. CPU seconds far below the seconds
    mean that storage, a network or a sleep was waited for; process CPU seconds far above them, other threads at work.

    Attributes:
        batches: that the trainer took.
        wait_seconds: host time until they were there, with the sampler and pinning.
        rows: of the batches; None where one told none.
        bytes: of their tensors, as they go to the device.
        fetched: batches that were loaded.
        fetch_seconds, fetch_cpu_seconds, fetch_process_cpu_seconds: in the data set: wall time, CPU time of the thread
            that loads, and of all threads of its process meanwhile. Likewise of the collator.
        core_wait_seconds: of both, the time that the thread was ready to run and waited for a core (on Linux); not
            asked before the first batch that took longer than 0.3 ms, like ``read_bytes``.
        read_bytes: that the disk was read for it, as far as the system says; what it had in memory is not in it.
        start_seconds, end_seconds: starting an epoch with its workers, and ending one.
        first_wait_seconds: of ``wait_seconds``, that for the first batch of an epoch.
        ready: batches that lay ready when one was asked for, summed over ``batches``; None without workers.
    """

    batches: int
    wait_seconds: float
    rows: int | None = None
    bytes: int = 0
    fetched: int = 0
    fetch_seconds: float = 0.0
    fetch_cpu_seconds: float = 0.0
    fetch_process_cpu_seconds: float = 0.0
    collate_seconds: float = 0.0
    collate_cpu_seconds: float = 0.0
    collate_process_cpu_seconds: float = 0.0
    core_wait_seconds: float = 0.0
    read_bytes: int = 0
    start_seconds: float = 0.0
    end_seconds: float = 0.0
    first_wait_seconds: float = 0.0
    ready: int | None = None


class StepRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One optimizer step on one rank, as ``steps.jsonl`` holds it: written and read.

    The records of a segment tile its training loop: a step starts where the trailing work of the previous one
    ended, and holds its own data wait and the logging, evaluation and checkpointing that follow its update.
    The first record also holds an evaluation that ran before the first step.

    Attributes:
        segment: number of the ``train()`` call in this file, from 0; a resumed run counts on.
        step: the Trainer's ``global_step`` after the update, from 1.
        epoch: epochs done after the update; None where the Trainer does not know.
        started_at_seconds: start of the record, counted from the start of the segment's ``train()`` call.
        phase_seconds: exclusive host seconds per phase that occurred; ``unattributed`` is derived.
        micro_batches: fetched for the step; tokens, sequences and work are sums over them on this rank.
        memory, device_seconds: None without a CUDA device. The seconds are by phase, by device events;
            ``exposed_wait`` is the time that the device had nothing of this step to do between the optimizer of the
            step before and the first forward; ``communication``, under DDP, what its computing stream waited for
            other ranks.
        loader: None where the data loader was not watched.
        cpu_seconds: CPU time of all threads of the process over the step; None in a run of one process.
        waited_seconds: of logging, evaluation and checkpointing, by phase, the host time in which this rank waited for
            others in a collective; in all other phases that is ``phase_seconds.communication``. None where it did not.
        loss, learning_rate, grad_norm: what the Trainer itself logged after this step (the loss is the mean since its
            last log); None where it did not.
    """

    segment: int
    rank: int
    step: int
    epoch: float | None
    wall_seconds: float
    started_at_seconds: float
    phase_seconds: Mapping[str, float]
    micro_batches: int
    tokens: TokenCounts = TokenCounts()
    sequences: SequenceCounts | None = None
    work: StepWork | None = None
    memory: StepMemory | None = None
    device_seconds: Mapping[str, float] | None = None
    loader: StepLoader | None = None
    cpu_seconds: float | None = None
    waited_seconds: Mapping[str, float] | None = None
    loss: LoggedFigure = None
    learning_rate: LoggedFigure = None
    grad_norm: LoggedFigure = None
    schema_version: int = SCHEMA_VERSION

    @property
    def unattributed_seconds(self) -> float:
        """``wall_seconds`` minus the sum of the phases, exact to the nanosecond that the clock counts in."""
        return round(self.wall_seconds - math.fsum(self.phase_seconds.values()), 9)

    def to_json(self) -> dict[str, Any]:
        """The record as strict JSON holds it; what a step does not know of its optional parts is left out."""
        held: dict[str, Any] = {
            "schema_version": self.schema_version,
            "tokens": msgspec.to_builtins(self.tokens),
            "loss": None,
            **msgspec.to_builtins(self),
            "unattributed_seconds": self.unattributed_seconds,
        }
        for name in ("loss", "learning_rate", "grad_norm"):
            if isinstance(value := held.get(name), float) and not math.isfinite(value):
                held[name] = str(value)
        return held
