"""A plan on a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.plan import Plan
from hf_efficient.report.phases import category_label, phase_label
from hf_efficient.report.plan_data import data_renderables
from hf_efficient.report.plan_gpus import FRONTIER_MARK, GpuTable
from hf_efficient.report.plan_notes import grouped_notes, spot_saves
from hf_efficient.report.plan_ranks import rank_renderables
from hf_efficient.units import count, flops, share, size

__all__ = ["plan_renderables"]

_SMALLEST_SHARE = 0.001


def plan_renderables(plan: Plan) -> list[RenderableType]:
    """What to print, in order: what was planned, its memory, the accelerators, and what was taken for granted."""
    return [
        _title(plan),
        *rank_renderables(plan.ranks),
        *([] if plan.data is None else data_renderables(plan.data)),
        Text(),
        Text(_peak(plan), "bold"),
        _categories(plan),
        Text(),
        _largest(plan),
        Text(),
        GpuTable(plan),
        *_notes(plan),
    ]


def _title(plan: Plan) -> Text:
    rows = " x ".join(f"{one:,}" for one in plan.step_rows)
    what = (
        f"{count(plan.trained_parameters)} of {count(plan.parameters)} parameters are trained ({plan.adapter}).\n"
        f"{'A step' if plan.data is None else 'The largest step'} is {rows} = {math.prod(plan.step_rows):,} tokens and "
        f"{flops(plan.flops_per_step)}FLOP."
    )
    return Text.assemble((f"{plan.recipe}: {plan.model}\n", "bold"), what)


def _peak(plan: Plan) -> str:
    memory = plan.memory
    where = f", in {memory.peak_module}" if memory.peak_module else ""
    paged = f"; besides, {size(memory.paged_bytes)} of paged optimizer state" if memory.paged_bytes else ""
    step = " of the first step" if memory.peak_step == 1 else " of every step after the first"
    if memory.peak_phase == "evaluation":
        step = ""
    peak = f"Memory: {size(memory.peak_allocated_bytes)} allocated at the peak"
    return f"{peak}, in the {phase_label(memory.peak_phase)}{step}{where}{paged}"


def _categories(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    whole = plan.memory.peak_allocated_bytes
    for name, held in sorted(plan.memory.categories.items(), key=lambda item: -item[1]):
        if held >= _SMALLEST_SHARE * whole:
            table.add_row(f"  {category_label(name)}", size(held), share(held / whole))
    return table


def _largest(plan: Plan) -> Table:
    table = Table("largest tensors at the peak", "", "shape", "dtype", box=None, header_style="bold", pad_edge=False)
    for one in plan.memory.largest:
        shape = " x ".join(f"{length:,}" for length in one.shape)
        table.add_row(f"  {category_label(one.category)}", size(one.bytes), shape, one.dtype)
    return table


def _notes(plan: Plan) -> Iterator[RenderableType]:
    yield Text()
    if any(gpu.on_frontier for gpu in plan.gpus):
        yield Text(f"{FRONTIER_MARK} none of the others that fit is at least as fast and as cheap", "dim")
    yield Text(
        "Times and costs are estimates: the roofline of each device at published efficiencies, list prices.", "dim"
    )
    if plan.steps is None:
        yield Text("/M is per million tokens; energy is that of the GPU at its thermal design power.", "dim")
    else:
        yield Text("Energy is that of the GPU at its thermal design power.", "dim")
    yield Text("GiB: what PyTorch's allocator reserves of these allocations, and the CUDA context.", "dim")
    for told in plan.assumptions:
        yield Text(f"- {told}", "dim")
    if saves := spot_saves(plan.gpus, plan.steps):
        yield Text(f"- {saves}", "dim")
    for note, names in grouped_notes(plan.gpus).items():
        yield Text(f"- {', '.join(names)}: {note}", "dim")
