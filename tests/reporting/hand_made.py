"""A series of a few buckets, of which every figure can be worked out by hand."""

import dataclasses
from typing import Any

from hf_efficient.records.account import RunSeries, StepSeries

NO_STEPS = StepSeries(
    **{each.name: {} if each.name == "phase_seconds" else [] for each in dataclasses.fields(StepSeries)}
)


def steps(**columns: Any) -> StepSeries:
    length = len(columns.get("steps", [1] * 4))
    nothing: list[None] = [None] * length
    count = columns.get("steps", [1] * 4)
    first = [1 + sum(count[:place]) for place in range(length)]
    base: dict[str, Any] = {each.name: nothing for each in dataclasses.fields(StepSeries)}
    base |= {
        "segment": [0] * length, "steps": count, "first_step": first,
        "last_step": [at + number - 1 for at, number in zip(first, count, strict=True)],
        "started_at_seconds": [10.0 + at - 1 for at in first], "wall_seconds": [float(number) for number in count],
        "step_seconds_mean": [1.0] * length,
        "phase_seconds": {"forward": [0.75 * number for number in count], "unattributed": [0.25 * n for n in count]},
        "not_finite": [0] * length, "preferences": {},
    }  # fmt: skip
    return StepSeries(**base | columns)


def series(held: StepSeries, **parts: Any) -> RunSeries:
    from hf_efficient.records.account import Histogram, SystemSeries

    return RunSeries(
        **{"process_starts_seconds": [0.0], "steps": held, "step_seconds": Histogram(), "system": SystemSeries()}
        | parts
    )
