"""The lines of ``system.jsonl`` as typed objects (see ``measure/system.py``, which writes them)."""

from __future__ import annotations

import functools
import math
from typing import Literal

import msgspec

from hf_efficient.account.line_reader import Line, LineReader

__all__ = ["MeterPart", "SystemLine", "system_reader"]


class MeterPart(msgspec.Struct, gc=False):
    """What a meter is."""

    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    note: str
    range_joules: float | None = None


class SystemLine(Line, gc=False, kw_only=True):
    """A sample."""

    process: int
    at_seconds: float
    rss_bytes: int | None = None
    host_available_bytes: int | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    joules: dict[str, float] = msgspec.field(default_factory=dict)
    host: dict[str, float] = msgspec.field(default_factory=dict)
    core_loads: list[int] = msgspec.field(default_factory=list)
    gpus: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    throttled: dict[str, list[str]] = msgspec.field(default_factory=dict)
    watts: dict[str, float] = msgspec.field(default_factory=dict)
    meters: dict[str, MeterPart] = msgspec.field(default_factory=dict)
    faults: dict[str, str] = msgspec.field(default_factory=dict)


@functools.cache
def system_reader() -> LineReader[SystemLine]:
    """Reads them."""
    return LineReader(SystemLine, "sample", _finite)


def _finite(line: SystemLine) -> None:
    loads = (value for figures in (line.host, *line.gpus.values()) for value in figures.values())
    for value in (line.at_seconds, *line.joules.values(), *line.watts.values(), *loads):
        if not math.isfinite(value):
            raise ValueError(f"it holds {value}")
