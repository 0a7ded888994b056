"""The lines of ``steps.jsonl`` as typed objects: what sums and series take in."""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import msgspec

from hf_efficient.account.line_reader import Line, LineReader
from hf_efficient.records import StepLoader

__all__ = ["StepLine", "SumLine", "step_reader", "step_seconds"]


NotFinite = Literal["nan", "inf", "-inf"]
"""How a record holds a figure that is not finite."""


class TokensPart(msgspec.Struct, gc=False):
    """See ``TokenCounts``."""

    processed: int | None
    non_padding: int | None
    loss_bearing: int | None


class SequencesPart(msgspec.Struct, gc=False):
    """See ``SequenceCounts``."""

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: dict[str, int] = msgspec.field(default_factory=dict)


class WorkPart(msgspec.Struct, gc=False):
    """See ``StepWork``."""

    model_flops: int
    hardware_flops: int | None


class MemoryPart(msgspec.Struct, gc=False):
    """See ``StepMemory``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    allocation_retries: int = 0


class SumLine(Line, gc=False, kw_only=True):
    """What the sums of any rank need of a step record (see ``StepRecord``)."""

    segment: int
    wall_seconds: float
    phase_seconds: dict[str, float]
    tokens: TokensPart
    step: int
    started_at_seconds: float
    sequences: SequencesPart | None = None
    work: WorkPart | None = None
    device_seconds: dict[str, float] | None = None
    waited_seconds: dict[str, float] | None = None


class StepLine(SumLine, gc=False, kw_only=True):
    """What the series of rank 0 need beside it."""

    memory: MemoryPart | None = None
    loader: StepLoader | None = None
    loss: float | NotFinite | None = None
    learning_rate: float | NotFinite | None = None
    grad_norm: float | NotFinite | None = None


def _finite(line: SumLine) -> None:
    for name in ("wall_seconds", "started_at_seconds"):
        if not math.isfinite(getattr(line, name)):
            raise ValueError(f"{name} is {getattr(line, name)}")
    for name, seconds in line.phase_seconds.items():
        if not math.isfinite(seconds):
            raise ValueError(f"phase_seconds.{name} is {seconds}")


@functools.cache
def step_reader(*, detailed: bool) -> LineReader[Any]:
    """Reads StepLines, or SumLines, which take less time."""
    return LineReader(StepLine if detailed else SumLine, "step record", _finite)


def step_seconds(line: SumLine) -> float:
    """Wall of a step without its evaluation and checkpointing."""
    phases = line.phase_seconds
    return line.wall_seconds - (phases.get("evaluation", 0.0) + phases.get("checkpointing", 0.0))
