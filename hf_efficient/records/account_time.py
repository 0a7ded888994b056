"""When the processes of a run trained, and where their wall time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ProcessAccount", "RestartAccount", "StepTimes", "TimeAccount", "TrainingAccount"]


@dataclass(frozen=True)
class TrainingAccount:
    """One call of ``train()`` on rank 0: a part of its process, whose time is counted there.

    Attributes:
        segment: its number in the records, from 0; a resumed run counts on.
        called_at_seconds: when, counted from the start of the process.
        wall_seconds: from there to its end; where no end was recorded, to the end of its last step, or to the last sign
            of a process that died in it.
        steps: optimizer steps recorded.
        first_step, last_step: the Trainer's numbers of the first and the last of them.
        time_to_first_step_seconds: from the call to the end of the first step.
        ended: ``done``; ``stopped``; ``error``; ``died``: its process did; None: older records, which do not tell.
        error: kind and first line of the exception.
    """

    segment: int
    called_at_seconds: float
    wall_seconds: float
    steps: int
    first_step: int | None
    last_step: int | None
    time_to_first_step_seconds: float | None
    ended: Literal["done", "stopped", "error", "died"] | None
    error: str | None


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
        ended: ``done``; ``stopped``: it was asked to end, and saved; ``error``: an exception ended it; ``died``: no end
            was recorded, since it was killed or still runs, and ``last_sign_at_seconds`` tells until when it is known
            to have lived.
        error: kind and first line of the exception; after which step it stopped.
        open_phase: what was under way at the last sign of life of a process that died.
        last_sign_at_seconds: time of the last record, counted from the start of the process.
        process_start_from: what told the start of the process: ``kernel`` (to 10 ms), ``psutil`` (wall clock, to about
            a second), ``import`` (unknown: counted from the import of hf_efficient), ``records`` (older records, from
            the first step on).
        trainings: its ``train()`` calls, in order.
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
    ended: Literal["done", "stopped", "error", "died"]
    error: str | None
    open_phase: str | None
    last_sign_at_seconds: float
    process_start_from: Literal["kernel", "psutil", "import", "records"]
    trainings: list[TrainingAccount] = field(default_factory=list)


@dataclass(frozen=True)
class RestartAccount:
    """A process after the first: the run went on, by hand or by its launcher. Its time is counted with its process.

    Attributes:
        process: its number.
        last_step_before: the last step that had been done; None: none had.
        resumed_after_step: the step of the checkpoint that it went on from, 0 for none; None: it never came to train.
        steps_again: that had been done before, and were lost.
        seconds_again: what they had taken, without evaluations and checkpoints.
        start_seconds: from the start of the process to its first step; all of it where it never came to one.
        cost_usd: of both; None where no price is known.
    """

    process: int
    last_step_before: int | None
    resumed_after_step: int | None
    steps_again: int
    seconds_again: float
    start_seconds: float
    cost_usd: float | None


@dataclass(frozen=True)
class TimeAccount:
    """Host time of rank 0, all processes of the run added up.

    Attributes:
        wall_seconds: sum of the processes' walls; what lay between them belongs to nobody.
        phase_seconds: exclusive seconds per phase.
        device_seconds: seconds on the device per phase, by device events, with ``exposed_wait``; None without them.
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
    device_seconds: dict[str, float] | None = None


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
