"""A run over its time, thinned for plots: columns of equal length, one entry per bucket.

*Run time* is the axis of all of them: the walls of the run's processes put end to end, so that a resumed run has one
axis without the time that lay between its processes. Every figure is a finite number; None: not known, never zero.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Band:
    """One quantity over the buckets: smallest, mean and largest reading; None where a bucket has none."""

    low: list[float | None] = field(default_factory=list)
    mean: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class StepSeries:
    """Optimizer steps of rank 0: a bucket is consecutive steps of one ``train()`` call, all but its last equally many.

    Seconds of single steps are without evaluation and checkpointing. Tokens are sums on rank 0, None where a step does
    not know them. ``first_step``, ``last_step``: the Trainer's numbers. ``started_at_seconds``: run time at the start
    of the first. ``phase_seconds``: sums by phase, with ``unattributed``; 0 where a phase did not occur. ``loss``,
    ``learning_rate``, ``grad_norm``: the last logged, if finite; extremes are of all that are finite. ``preferences``:
    the last logged by name (see ``PREFERENCES``); empty of other trainers."""

    segment: list[int]
    steps: list[int]
    first_step: list[int]
    last_step: list[int]
    started_at_seconds: list[float]
    wall_seconds: list[float]
    step_seconds_mean: list[float]
    phase_seconds: dict[str, list[float]]
    processed_tokens: list[int | None]
    non_padding_tokens: list[int | None]
    target_tokens: list[int | None]
    loss: list[float | None]
    loss_min: list[float | None]
    loss_max: list[float | None]
    learning_rate: list[float | None]
    grad_norm: list[float | None]
    not_finite: list[int]
    preferences: dict[str, list[float | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.segment)


@dataclass(frozen=True)
class Histogram:
    """How often which value occurred. ``scale``: ``log`` where the largest value is more than four times the smallest.
    ``counts``: from an edge up to the next, which belongs to the next count, except the last."""

    scale: Literal["linear", "log"] = "linear"
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SystemSeries:
    """What the sampler saw of the machine of rank 0: a bucket is consecutive readings of one process.
    ``started_at_seconds`` and ``ended_at_seconds`` are run time. ``host`` and ``gpus`` are named as in
    ``recording/probes.py``. ``throttled`` has shares of readings by GPU and reason."""

    process: list[int] = field(default_factory=list)
    started_at_seconds: list[float] = field(default_factory=list)
    ended_at_seconds: list[float] = field(default_factory=list)
    rss_bytes: Band = field(default_factory=Band)
    host_available_bytes: Band = field(default_factory=Band)
    device_allocated_bytes: Band = field(default_factory=Band)
    device_reserved_bytes: Band = field(default_factory=Band)
    watts: dict[str, Band] = field(default_factory=dict)
    host: dict[str, Band] = field(default_factory=dict)
    gpus: dict[str, dict[str, Band]] = field(default_factory=dict)
    throttled: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.process)


@dataclass(frozen=True)
class RunSeries:
    """A run over its time; the histogram is of steps after warm-up, without evaluation and checkpointing."""

    process_starts_seconds: list[float]
    steps: StepSeries
    step_seconds: Histogram
    system: SystemSeries
