"""What the lines of ``spans.jsonl`` must hold, kind by kind, so that one which does not is left out as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hf_efficient.records import RecordedBy

__all__ = ["check_span_line"]


class _Process(msgspec.Struct):
    way: RecordedBy
    process_start_from: Literal["kernel", "psutil", "import", "records"]
    began_at_seconds: float


class _Span(msgspec.Struct):
    started_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]


class _Train(msgspec.Struct):
    segment: int
    at_seconds: float


class _End(msgspec.Struct):
    ended: Literal["done", "stopped", "error"]
    error: str | None
    at_seconds: float
    memory: dict[str, int]


class _TrainEnd(msgspec.Struct):
    segment: int
    ended: Literal["done", "stopped", "error"]
    error: str | None
    at_seconds: float


class _Alive(msgspec.Struct):
    at_seconds: float
    started_at_seconds: float
    open_phase: str | None
    phase_seconds: dict[str, float]
    memory: dict[str, int]


class _Price(msgspec.Struct):
    price_usd_per_hour: float | None
    source: str | None = None
    estimated: bool = False
    reason: str | None = None


class _Grid(msgspec.Struct):
    grams_per_kwh: float
    source: str


class _Work(msgspec.Struct):
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_reason: str | None = None
    accelerators: int = 1
    dtype: str | None = None
    reason: str | None = None
    hardware_reason: str | None = None


class _Category(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    bytes: int
    how: str
    note: str


class _Memory(msgspec.Struct):
    device: str
    categories: list[_Category] = []
    positions: int | None = None


class _Data(msgspec.Struct):
    fill_rate: float | None = None


class _Plan(msgspec.Struct):
    """Whole, or without a device: then it holds no figures, and says why there is no plan."""

    device: str | None = None
    steps: int = 0
    positions: int = 0
    categories: dict[str, int] = {}
    reasons: dict[str, str] = {}
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    training_seconds: float | None = None
    training_cost_usd: float | None = None
    training_energy_joules: float | None = None


class _Limits(msgspec.Struct):
    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None


class _Run(msgspec.Struct):
    max_steps: int | None = None
    evaluate_every: int | None = None
    evaluate_from: int = 0
    evaluate_after: bool = False
    save_every: int | None = None
    save_best: bool = False


class _Known(msgspec.Struct):
    price: _Price | None = None
    grid: _Grid | None = None
    work: _Work | None = None
    memory: _Memory | None = None
    data: _Data | None = None
    budget: _Limits | None = None
    run: _Run | None = None
    plan: _Plan | None = None


class _Gap(msgspec.Struct):
    what: str
    why: str


class _Topic(msgspec.Struct):
    missing: list[_Gap] = []


class _Facts(msgspec.Struct):
    facts: dict[str, _Topic]


class _KnownFacts(msgspec.Struct):
    facts: _Known


class _Timed(msgspec.Struct):
    seconds: float | None = None


class _Reached(msgspec.Struct):
    reached: str | None = None
    step: int | None = None


_KINDS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "process": (_Process,),
    "span": (_Span,),
    "train": (_Train,),
    "train_end": (_TrainEnd,),
    "end": (_End,),
    "alive": (_Alive,),
    "facts": (_Facts, _KnownFacts),
    "evaluation": (_Timed,),
    "save": (_Timed,),
    "budget": (_Reached,),
}
"""Of each kind what it holds; keys that are not named are not looked at, nor kinds of a later version."""


def check_span_line(line: Mapping[str, Any]) -> None:
    """Refuse a line that does not hold what its kind does.

    Raises:
        ValueError: it does not; says why.
    """
    try:
        for name, kind in (("kind", str), ("process", int)):
            if not isinstance(line[name], kind) or isinstance(line[name], bool):
                raise ValueError(f"{name} is {line[name]!r}")
        for expected in _KINDS.get(line["kind"], ()):
            msgspec.convert(line, expected)
        json.dumps(line, allow_nan=False)  # strict JSON is what was written
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a span record: {type(error).__name__}: {error}") from error
