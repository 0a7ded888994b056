"""The phases that the time of a process is told in.

They are exclusive: a second belongs to the innermost phase that was open, and what no phase claims is ``unattributed``.

    startup     imports, before_trainer (a script's own work before its trainer), model_load, data_preparation,
                planning (the run simulated before it begins), trainer_setup, compilation (inside the steps that
                torch.compile holds up)
    step        data_wait, host_to_device, forward, backward, device_wait (the host reads a micro-batch's loss back, and
                waits for the GPU), optimizer, communication (the host waits for other ranks), bookkeeping (what the
                Trainer itself does between these: its NaN filter, its count of FLOPs, callbacks), logging, evaluation,
                checkpointing
    coarse      what a callback alone can tell of a step: forward_backward, between_steps (data wait and logging)
    closing     merging, outside_trainer (a script's own work after its trainer was built), shutdown

A record per optimizer step: its time, tokens, sequences, work and memory.

One is made for every step, so they are msgspec's structs: frozen as dataclasses are, and made in a fraction of the
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, get_args

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


class TokenCounts(msgspec.Struct, frozen=True):
    """Tokens counted three ways; None where a batch does not tell.

    Attributes:
        processed: positions the model computed, padding included.
        non_padding: positions that are not padding.
        loss_bearing: positions with a label (``labels != -100``; for preference data the completion's
            tokens).
    """

    processed: int | None = None
    non_padding: int | None = None
    loss_bearing: int | None = None


class SequenceCounts(msgspec.Struct, frozen=True):
    """The sequences that a step computed, summed over its micro-batches on one rank.

    Attributes:
        rows: rows of the batches; a padding-free batch is one row.
        documents: sequences that attend to themselves alone; a row without packing holds one.
        shortest, longest: tokens of a document, without padding.
        length_buckets: documents by length: upper bound of a bucket in tokens, as text, to how many are in it (see
            ``measure/lengths.py``).
    """

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: Mapping[str, int] = {}


class StepWork(msgspec.Struct, frozen=True):
    """FLOPs of a step on one rank (see ``estimate/flops.py``).

    Attributes:
        model_flops: what the mathematics needs.
        hardware_flops: what is computed: padding, masked pairs and recompute included; None where that is not known.
    """

    model_flops: int
    hardware_flops: int | None


class StepMemory(msgspec.Struct, frozen=True):
    """Memory of the CUDA device over a step on one rank, from the allocator's books on the host.

    Attributes:
        peak_allocated_bytes: tensors.
        peak_reserved_bytes: what the allocator held of the device.
        phase_peak_allocated_bytes: the peak of ``allocated`` within each phase.
        allocation_retries: times since the start of the process that the allocator had to free its cache.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: Mapping[str, int] = {}
    allocation_retries: int = 0


class StepLoader(msgspec.Struct, frozen=True):
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
        fetch_seconds: wall time in the data set.
        fetch_cpu_seconds: CPU time of the thread that loads, meanwhile.
        fetch_process_cpu_seconds: CPU time of all threads of its process, meanwhile.
        collate_seconds, collate_cpu_seconds, collate_process_cpu_seconds: the same of the collator.
        core_wait_seconds: of both, the time that the thread was ready to run and waited for a core (Linux tells it);
            not asked before the first batch that took longer than 0.3 ms, like ``read_bytes``.
        read_bytes: that the disk was read for it, as far as the system says; what it had in memory is not in it.
        start_seconds: starting an epoch: the iterator is made, its workers are started.
        end_seconds: ending one: workers that do not persist are joined.
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

    def to_json(self) -> dict[str, Any]:
        """What is not as its default says: a step without a new epoch is silent about one."""
        return {name: value for name, default in _LOADER_KEYS if (value := getattr(self, name)) != default}


_LOADER_KEYS = [(field.name, field.default) for field in msgspec.structs.fields(StepLoader)]


class StepRecord(msgspec.Struct, frozen=True):
    """One optimizer step on one rank.

    The records of a segment tile its training loop: a step starts where the trailing work of the previous one
    ended, and holds its own data wait and the logging, evaluation and checkpointing that follow its update.
    The first record also holds an evaluation that ran before the first step.

    Attributes:
        segment: number of the ``train()`` call in this file, from 0; a resumed run counts on.
        rank: index of the process.
        step: the Trainer's ``global_step`` after the update, from 1.
        epoch: epochs done after the update; None where the Trainer does not know.
        wall_seconds: host time from start to end of the record.
        started_at_seconds: start of the record, counted from the start of the segment's ``train()`` call.
        phase_seconds: exclusive host seconds per phase that occurred (never ``unattributed``, which is
            derived).
        micro_batches: batches fetched for the step.
        tokens: sums over the step's micro-batches on this rank.
        sequences: None where the batches do not tell.
        work: None where the model's FLOPs or the sequences are not known.
        memory: None without a CUDA device.
        device_seconds: seconds on the device per phase, by device events; ``exposed_wait`` is the time that the device
            had nothing of this step to do between the optimizer of the step before and the first forward;
            ``communication``, under DDP, what its computing stream waited for other ranks. None without a CUDA device.
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
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def unattributed_seconds(self) -> float:
        """``wall_seconds`` minus the sum of the phases, exact to the nanosecond that the clock counts in."""
        return round(self.wall_seconds - math.fsum(self.phase_seconds.values()), 9)

    def to_json(self) -> dict[str, Any]:
        """The record as strict JSON holds it (a loss that is not finite becomes ``"nan"`` or ``"inf"``).

        What a step does not know of its sequences, work, memory, device or data loader is left out.
        """
        held: dict[str, Any] = {
            "schema_version": self.schema_version,
            "segment": self.segment,
            "rank": self.rank,
            "step": self.step,
            "epoch": self.epoch,
            "wall_seconds": self.wall_seconds,
            "started_at_seconds": self.started_at_seconds,
            "phase_seconds": dict(self.phase_seconds),
            "unattributed_seconds": self.unattributed_seconds,
            "micro_batches": self.micro_batches,
            "tokens": {
                "processed": self.tokens.processed,
                "non_padding": self.tokens.non_padding,
                "loss_bearing": self.tokens.loss_bearing,
            },
            "loss": _strict(self.loss),
        }
        if self.learning_rate is not None:
            held["learning_rate"] = _strict(self.learning_rate)
        if self.grad_norm is not None:
            held["grad_norm"] = _strict(self.grad_norm)
        for name, part in (("sequences", self.sequences), ("work", self.work), ("memory", self.memory)):
            if part is not None:
                held[name] = msgspec.structs.asdict(part)
        if self.cpu_seconds is not None:
            held["cpu_seconds"] = self.cpu_seconds
        if self.waited_seconds is not None:
            held["waited_seconds"] = dict(self.waited_seconds)
        if self.device_seconds is not None:
            held["device_seconds"] = dict(self.device_seconds)
        if self.loader is not None:
            held["loader"] = self.loader.to_json()
        return held

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepRecord:
        """The record that ``to_json`` wrote.

        Raises:
            ValueError: a key is missing or of the wrong type, or the record is of a newer schema.
        """
        try:
            version = int(data["schema_version"])
            if version > SCHEMA_VERSION:
                raise ValueError(
                    f"schema_version {version} is newer than {SCHEMA_VERSION}, which is read here: upgrade hf-efficient"
                )
            tokens = data["tokens"]
            return cls(
                segment=int(data["segment"]),
                rank=int(data["rank"]),
                step=int(data["step"]),
                epoch=None if data["epoch"] is None else float(data["epoch"]),
                wall_seconds=float(data["wall_seconds"]),
                started_at_seconds=float(data["started_at_seconds"]),
                phase_seconds={str(name): float(value) for name, value in data["phase_seconds"].items()},
                micro_batches=int(data["micro_batches"]),
                tokens=TokenCounts(tokens["processed"], tokens["non_padding"], tokens["loss_bearing"]),
                sequences=_part(SequenceCounts, data.get("sequences")),
                work=_part(StepWork, data.get("work")),
                memory=_part(StepMemory, data.get("memory")),
                device_seconds=data.get("device_seconds"),
                cpu_seconds=_number(data.get("cpu_seconds")),
                waited_seconds=data.get("waited_seconds"),
                loader=_part(StepLoader, data.get("loader")),
                loss=_number(data["loss"]),
                learning_rate=_number(data.get("learning_rate")),
                grad_norm=_number(data.get("grad_norm")),
                schema_version=version,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a step record: {type(error).__name__}: {error}") from error


def _strict(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


_Part = TypeVar("_Part")


def _part(kind: Callable[..., _Part], data: Mapping[str, Any] | None) -> _Part | None:
    """Keys that a newer minor version added are an error here: the schema version says that there are none."""
    return None if data is None else kind(**data)
