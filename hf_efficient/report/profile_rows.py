"""What the deeper instruments of a run found, as lines and cells."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records import InstrumentAccount, OperatorTable, OperatorTime
from hf_efficient.units import flops, share, short_seconds

__all__ = ["cost_line", "instrument_rows", "operator_cells", "operator_headings", "operator_summary", "shared_remark"]

_LONGEST_SHAPES = 60


def cost_line(instrument: InstrumentAccount) -> str:
    """One instrument in a sentence: ``profile.trace cost 1.2 s over 4 steps: ...; wrote profile/...``."""
    return f"profile.{instrument.name} {_cost(instrument)}"


def shared_remark(instruments: Sequence[InstrumentAccount]) -> str:
    """What to know of the costs where several instruments slowed the steps; empty where none shares any."""
    slower = [one.name for one in instruments if one.cost_seconds is not None and one.cost_seconds > one.own_seconds]
    if len(slower) < 2:
        return ""
    return f"{' and '.join(slower)} ran at the same time: what their steps took longer is in the cost of each."


def instrument_rows(instruments: Sequence[InstrumentAccount]) -> list[tuple[str, str]]:
    """The same with the name apart."""
    return [(instrument.name, _cost(instrument)) for instrument in instruments]


def _cost(instrument: InstrumentAccount) -> str:
    if instrument.cost_seconds is None:
        told = "did not run"
    else:
        over = f" over {instrument.steps} steps" if instrument.steps else ""
        told = f"cost {short_seconds(instrument.cost_seconds)}{over}"
        told += f" ({short_seconds(instrument.own_seconds)} of it in its own code)"
    if instrument.note:
        told += f": {instrument.note}"
    return f"{told}; wrote {', '.join(instrument.files)}" if instrument.files else told


def operator_summary(table: OperatorTable) -> str:
    """What part of the traced steps the operators are."""
    told = f"{table.steps} steps were traced, {short_seconds(table.wall_seconds)} under the profiler"
    if table.self_device_seconds is not None:
        part = table.self_device_seconds / table.wall_seconds if table.wall_seconds else 0.0
        told += f"; kernels took {short_seconds(table.self_device_seconds)} on the device, {share(part)} of that"
    return f"{told}; operators took {short_seconds(table.self_cpu_seconds)} on the host"


def operator_headings(table: OperatorTable) -> list[str]:
    """Of the columns of ``operator_cells``."""
    device = ["device", "share"] if table.self_device_seconds is not None else []
    return ["operator", "calls", *device, "host", *([] if device else ["share"]), "FLOPs", "shapes"]


def operator_cells(table: OperatorTable, operator: OperatorTime) -> list[str]:
    """One operator: its self times, and their share of those of all operators."""
    total = table.self_cpu_seconds if table.self_device_seconds is None else table.self_device_seconds
    mine = operator.self_cpu_seconds if operator.self_device_seconds is None else operator.self_device_seconds
    part = share(mine / total) if total > 0 else ""
    device = [] if operator.self_device_seconds is None else [short_seconds(operator.self_device_seconds), part]
    host = [short_seconds(operator.self_cpu_seconds), *([] if device else [part])]
    return [operator.name, f"{operator.calls:,}", *device, *host, _flops(operator.flops), _shapes(operator.shapes)]


def _flops(number: int | None) -> str:
    return f"{flops(number)}" if number else ""


def _shapes(shapes: str) -> str:
    return shapes if len(shapes) <= _LONGEST_SHAPES else f"{shapes[:_LONGEST_SHAPES]} ..."
