"""The record of an optimizer step, and the phases that the time of a process is split into.

Phases are exclusive: a second belongs to the innermost phase that was open; what no phase claims is ``unattributed``.

    startup     imports, before_trainer (a script's own work before its trainer), model_load, data_preparation,
                planning (the run simulated before it begins), trainer_setup, compilation (inside the steps that
                torch.compile holds up)
    step        data_wait, host_to_device, generation and reward (of the completions that GRPO trains on), teacher (the
                forward of the model that is learned from), forward, backward, device_wait (the host reads a
                micro-batch's loss back, and waits for the GPU), optimizer, communication (the host waits for other
                ranks), bookkeeping (what the Trainer itself does between these: its NaN filter, its count of FLOPs,
                callbacks), logging, evaluation, checkpointing
    coarse      what a callback alone can see of a step: forward_backward, between_steps (data wait and logging)
    closing     merging, outside_trainer (a script's own work after its trainer was built), shutdown
"""

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
    "data_wait", "host_to_device", "generation", "reward", "teacher", "forward", "backward", "device_wait",
    "optimizer", "communication", "bookkeeping", "logging", "evaluation", "checkpointing",
]  # fmt: skip
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
    """Tokens, None where unknown; ``target``: ``labels != -100``, or the completion, given or generated."""

    processed: int | None = None
    non_padding: int | None = None
    target: int | None = None


class SequenceCounts(msgspec.Struct, frozen=True, gc=False):
    """The sequences that a step computed, summed over its micro-batches on one rank. ``rows``: of the batches; a
    padding-free batch is one. ``documents``: sequences that attend to themselves alone; a row without packing holds
    one. ``length_buckets``: documents by the upper bound of a bucket in tokens, as text."""

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: Mapping[str, int] = {}


class StepWork(msgspec.Struct, frozen=True, gc=False):
    """FLOPs of a step on one rank (see ``estimate/flops.py``). ``model_flops`` is what the mathematics needs;
    ``hardware_flops`` has padding, masked pairs and recompute, or None."""

    model_flops: int
    hardware_flops: int | None


class StepMemory(msgspec.Struct, frozen=True, gc=False):
    """Memory of the CUDA device over a step on one rank, by the allocator; retries count from the process's start."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: Mapping[str, int] = {}
    allocation_retries: int = 0


class StepLoader(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What the data loader did during a step on one rank.

    The trainer takes batches ahead of the step that trains on them, so those of a step are not all its own. Loading in
    the training process is part of ``wait_seconds``; workers load beside the training, and count since the step before.
    CPU seconds far below wall seconds mean a wait for storage, network or sleep; far above, other threads.

    Attributes:
        wait_seconds: host time until batches were there, with the sampler and pinning.
        rows, bytes: of the batches, None where one is unknown; of their tensors, as they go to the device.
        fetch_seconds, fetch_cpu_seconds, fetch_process_cpu_seconds: in the data set: wall time, CPU time of the loading
            thread, and of all threads of its process. Likewise of the collator.
        core_wait_seconds: of both, the time that the thread waited for a core (on Linux).
        read_bytes: read from disk, as far as the system says, without what memory held. While batches take less than
            2 ms, this and the times of fetching and collating are of one batch in seven, which counts for seven.
        ready: batches ready when one was asked for, summed over ``batches``; None without workers.
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


PREFERENCES: Mapping[str, tuple[str, ...]] = {
    "margin": ("rewards/margins", "margin"),
    "accuracy": ("rewards/accuracies", "accuracy"),
    "chosen_reward": ("rewards/chosen",),
    "rejected_reward": ("rewards/rejected",),
    "chosen_logp": ("logps/chosen",),
    "rejected_logp": ("logps/rejected",),
    "kl": ("kl",),
}
"""Names, and those that TRL's trainers log: reward of the better answer less that of the worse, share of pairs in which
it is greater, both rewards, both log-probabilities (of ORPO, CPO and SimPO perhaps a token's mean), KTO's KL term."""


class StepRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One optimizer step on one rank, as ``steps.jsonl`` holds it: written and read.

    The records of a segment tile its training loop: a step starts where the trailing work of the previous one ended,
    and holds the logging, evaluation and checkpointing after its update. The first also holds an evaluation before it.

    Attributes:
        segment: number of the ``train()`` call in this file, from 0; a resumed run counts on.
        step: the Trainer's ``global_step`` after the update, from 1.
        started_at_seconds: counted from the start of the ``train()`` call.
        phase_seconds: exclusive host seconds; ``unattributed`` is derived.
        micro_batches: fetched for the step; tokens, sequences and work are sums over them on this rank.
        memory, device_seconds: None without a CUDA device. ``exposed_wait`` is the device's time without work between
            the last optimizer and the first forward; ``communication``, under DDP, its computing stream's wait for
            other ranks.
        cpu_seconds: of all threads of the process; None in a run of one process.
        waited_seconds: host time within logging, evaluation and checkpointing spent waiting for other ranks; other
            phases have it in ``phase_seconds.communication``.
        held_seconds: by ``PHASE/Class.method``, what callbacks and the user's own methods took themselves, without what
            others took inside them; less than a thousandth of the step is left out. While steps take less than 50 ms,
            callbacks are timed in one of seven, and count for seven.
        loss, learning_rate, grad_norm: the Trainer's own log after this step, if any; the loss is the mean since its
            last log.
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
    held_seconds: Mapping[str, float] | None = None
    loss: LoggedFigure = None
    learning_rate: LoggedFigure = None
    grad_norm: LoggedFigure = None
    preferences: Mapping[str, float] | None = None
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
