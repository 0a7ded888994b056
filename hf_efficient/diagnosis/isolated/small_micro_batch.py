"""Micro-batches so small that what each costs by itself outweighs its tokens, from micro-batches of other sizes."""

from __future__ import annotations

from hf_efficient.diagnosis.isolated.rule import SOURCE, cost, gain
from hf_efficient.diagnosis.larger_micro_batch import larger_micro_batch
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation, MicroBatchLine
from hf_efficient.units import share

__all__ = ["small_micro_batch"]

_TOO_MUCH = 0.3
_MUCH_PADDING = 1.05


def small_micro_batch(found: Isolation) -> Finding | Abstention | None:
    """The fixed part of a micro-batch is 30% of its time or more: larger ones pay it less often."""
    line = found.micro_batch
    if line is None:
        return Abstention("small_micro_batch", "micro-batches of other sizes gave no line of time over tokens")
    fixed = min(line.fixed_seconds, line.seconds)
    taken = fixed / line.seconds if line.seconds > 0 else 0.0
    if taken < _TOO_MUCH:
        return None
    rows = found.schedule.micro_batch_rows
    source = f"{SOURCE}: {', '.join(line.variants)}"
    return Finding(
        rule="small_micro_batch",
        title=f"micro-batches of {rows} {'row' if rows == 1 else 'rows'} spend {share(taken)} of their time on what "
        "does not grow with their tokens",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("fixed time of a micro-batch", fixed, "seconds", source),
            Evidence("time of a micro-batch", line.seconds, "seconds", f"{SOURCE}: as_is"),
            Evidence("its share", taken, "share", source),
            Evidence("tokens of a micro-batch", line.tokens, "tokens", f"{SOURCE}: as_is"),
            Evidence("rows of a micro-batch", rows, "count", "recipe"),
        ],
        cost=cost(found, fixed * found.schedule.accumulation),
        remedies=[_remedy(found, line, fixed)],
    )


def _remedy(found: Isolation, line: MicroBatchLine, fixed: float) -> Remedy:
    schedule = found.schedule
    change = larger_micro_batch(schedule.micro_batch_rows, schedule.accumulation, fixed, line.seconds)
    what = f"take {change.times} times the rows into a micro-batch"
    padded = line.doubled_positions
    if padded is not None and padded > _MUCH_PADDING:
        costs = (
            f"{change.costs}; twice the rows hold {padded:.2f} times the positions for the same tokens, by padding, "
        )
        costs += "so that the gain is not predicted: examples of like length together, or packing, avoid it"
        return Remedy(what, change.overrides, costs)
    saved = fixed * schedule.accumulation * (1 - 1 / change.times)
    if change.growth > 1:
        data = found.part("data")
        waits = data.seconds or 0.0 if data is not None else 0.0
        saved += max(0.0, found.step_seconds - line.seconds * schedule.accumulation - waits) * (1 - 1 / change.growth)
    basis = f"what a micro-batch costs by itself is paid once for {change.times} times the rows, its tokens as measured"
    return Remedy(what, change.overrides, change.costs, gain(found, saved, basis))
