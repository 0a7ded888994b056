"""Recipes by their variants, made by hand for the rules."""

from __future__ import annotations

import dataclasses
from typing import Any

from hf_efficient.records.isolation import (
    Isolation,
    IsolationSchedule,
    LoaderAlone,
    MicroBatchLine,
    PauseTimes,
    StepPart,
)

__all__ = ["isolation", "part"]

SCHEDULE = IsolationSchedule(
    steps=1000,
    log_every=None,
    evaluate_every=None,
    save_every=None,
    micro_batch_rows=2,
    accumulation=4,
    processes=1,
    workers=0,
    cores=4.0,
    threads=1,
    device="cuda",
)


def part(name: str, seconds: float | None, note: str = "") -> StepPart:
    """A part without a spread."""
    return StepPart(name, seconds, None, None, 1, "a less b", note)


def isolation(*parts: StepPart, schedule: dict[str, Any] | None = None, **changes: Any) -> Isolation:
    """A step of one second; 1000 of them at 3.6 dollars an hour; a micro-batch without a fixed cost."""
    held: dict[str, Any] = {
        "schema_version": 1,
        "hf_efficient_version": "1",
        "recipe": "r",
        "steps": 12,
        "warm_up": 3,
        "schedule": dataclasses.replace(SCHEDULE, **(schedule or {})),
        "variants": [],
        "step_seconds": 1.0,
        "parts": list(parts),
        "unexplained_seconds": 0.0,
        "tokens_per_second": 400.0,
        "pauses": PauseTimes(None, None, None),
        "loader": LoaderAlone(0.5, None, 0.5, 0.05),
        "tokenisation": None,
        "micro_batch": MicroBatchLine(0.0, 0.002, 0.2, 100.0, 30, ["as_is", "micro_batch_doubled"]),
        "forward_without_graph_seconds": None,
        "price_usd_per_hour": 3.6,
        "notes": [],
    }
    return Isolation(**{**held, **changes})
