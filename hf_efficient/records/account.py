"""The account of a run, as ``run.json`` holds it. None: not known, never zero; ``not_measured`` says why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ACCOUNT_SCHEMA_VERSION",
    "MemoryAccount",
    "NotMeasured",
    "ProcessAccount",
    "RankAccount",
    "RecordedBy",
    "RunAccount",
    "StepTimes",
    "TimeAccount",
    "TokenAccount",
]

RecordedBy = Literal["recipe", "trainer", "callback", "unknown"]
ACCOUNT_SCHEMA_VERSION = 1
"""Version of ``run.json``; grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotMeasured:
    """One thing that the account leaves out, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class ProcessAccount:
    """The host time of one process that the run lived in, on rank 0; a resumed run has several.

    Attributes:
        process: number of the process in the records, from 0.
        began_at_seconds: where the run took the process over, counted from the start of the process; 0 for the first
            run in it.
        wall_seconds: from there to the end of the run, or to its last sign of life.
        phase_seconds: exclusive seconds per phase that occurred; with ``unattributed_seconds`` they sum up to the wall.
        unattributed_seconds: what no phase claimed.
        time_to_first_step_seconds: from ``began_at_seconds`` to the end of the first optimizer step, with the logging,
            evaluation and saving that follow it.
        steps: optimizer steps recorded.
        first_step, last_step: the Trainer's numbers of the first and the last of them.
        ended: ``done``; ``error``: an exception ended it; ``died``: no end was recorded, since it was killed or still
            runs, and ``last_sign_at_seconds`` tells until when it is known to have lived.
        error: kind and first line of the exception.
        open_phase: what was under way at the last sign of life of a process that died.
        last_sign_at_seconds: time of the last record, counted from the start of the process.
        process_start_from: what told the start of the process: ``kernel`` (to 10 ms), ``psutil`` (wall clock, to about
            a second), ``import`` (unknown: counted from the import of hf_efficient), ``records`` (older records, from
            the first step on).
    """

    process: int
    began_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    time_to_first_step_seconds: float | None
    steps: int
    first_step: int | None
    last_step: int | None
    ended: Literal["done", "error", "died"]
    error: str | None
    open_phase: str | None
    last_sign_at_seconds: float
    process_start_from: Literal["kernel", "psutil", "import", "records"]


@dataclass(frozen=True)
class TimeAccount:
    """Host time of rank 0, all processes of the run added up.

    Attributes:
        wall_seconds: sum of the processes' walls; what lay between them belongs to nobody.
        phase_seconds: exclusive seconds per phase.
        unattributed_seconds: what no phase claimed.
        training_seconds: wall time of the optimizer steps without evaluation and checkpointing: with data wait, logging
            and what is unattributed inside the loop. The denominator of every throughput.
        time_to_first_step_seconds: of the first process.
        processes: each by itself.
    """

    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    training_seconds: float
    time_to_first_step_seconds: float | None
    processes: list[ProcessAccount]


@dataclass(frozen=True)
class StepTimes:
    """Times of the optimizer steps of rank 0, each without its evaluation and checkpointing.

    Attributes:
        count: steps recorded; one done again after a resumption counts again.
        warm_up_count: steps set apart from the percentiles.
        warm_up_rule: which those are.
        p50_seconds, p95_seconds, p99_seconds: percentiles of the others, linear between neighbours.
        max_seconds: the longest of the others.
        warm_up_max_seconds: the longest of those set apart.
    """

    count: int
    warm_up_count: int
    warm_up_rule: str
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None
    warm_up_max_seconds: float | None


@dataclass(frozen=True)
class TokenAccount:
    """Tokens of all ranks; a count is None where a step of any rank does not know it.

    Attributes:
        processed: positions computed, padding included.
        non_padding: positions that are no padding.
        loss_bearing: positions with a label.
        padding_share: 1 - non_padding / processed.
        non_padding_tokens_per_second: ``non_padding`` / the largest ``training_seconds`` of any rank: evaluations,
            saves and all that lies outside the training loop are not in the denominator; data wait and logging are.
        processed_tokens_per_second: ``processed`` / the same.
    """

    processed: int | None
    non_padding: int | None
    loss_bearing: int | None
    padding_share: float | None
    non_padding_tokens_per_second: float | None
    processed_tokens_per_second: float | None


@dataclass(frozen=True)
class MemoryAccount:
    """Peaks of rank 0 over all processes of the run.

    Attributes:
        peak_rss_bytes: resident host memory, from the start of the process.
        device_peak_allocated_bytes: tensors on the CUDA device, as torch's allocator counts them.
        device_peak_reserved_bytes: what the allocator held of the device.
        device_allocation_retries: times that it had to free its cache to allocate.
    """

    peak_rss_bytes: int | None
    device_peak_allocated_bytes: int | None
    device_peak_reserved_bytes: int | None
    device_allocation_retries: int | None


@dataclass(frozen=True)
class RankAccount:
    """What is known of one rank's steps."""

    rank: int
    steps: int
    last_step: int | None
    training_seconds: float


@dataclass(frozen=True)
class RunAccount:
    """Where the time, the tokens and the memory of a run went.

    Attributes:
        schema_version: of this layout.
        hf_efficient_version: what built the account.
        recorded_by: ``recipe``, ``trainer`` (the mixin in a script of its own), ``callback`` (alone in a plain
            Trainer), ``unknown`` (older records).
        ended: of the last process.
        error: of the last process.
    """

    schema_version: int
    hf_efficient_version: str
    recorded_by: RecordedBy
    ended: Literal["done", "error", "died"]
    error: str | None
    time: TimeAccount
    steps: StepTimes
    tokens: TokenAccount
    memory: MemoryAccount
    ranks: list[RankAccount]
    not_measured: list[NotMeasured]
