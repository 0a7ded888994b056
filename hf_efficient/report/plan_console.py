"""A plan on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.plan import Plan, PlannedGpu
from hf_efficient.report.phases import category_label, phase_label
from hf_efficient.report.plan_data import data_renderables
from hf_efficient.units import count, flops, share, short_seconds, size

__all__ = ["plan_renderables"]

_GIB = 2**30
_SMALLEST_SHARE = 0.001


def plan_renderables(plan: Plan) -> list[RenderableType]:
    """What to print, in order: what was planned, its memory, the accelerators, and what was taken for granted."""
    return [
        _title(plan),
        *([] if plan.data is None else data_renderables(plan.data)),
        Text(),
        Text(_peak(plan), "bold"),
        _categories(plan),
        Text(),
        _largest(plan),
        Text(),
        _gpus(plan),
        *_notes(plan),
    ]


def _title(plan: Plan) -> Text:
    tokens = plan.micro_batches * plan.micro_batch_rows * plan.row_tokens
    what = (
        f"{count(plan.trained_parameters)} of {count(plan.parameters)} parameters are trained ({plan.adapter}).\n"
        f"A step is {plan.micro_batches} x {plan.micro_batch_rows} x {plan.row_tokens:,} = {tokens:,} tokens and "
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


def _gpus(plan: Plan) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("accelerator", no_wrap=True)
    for name in ("GiB of", "", "step", "tokens/s", "USD/h", "/M tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    if plan.steps is not None:
        table.add_column("run", justify="right", no_wrap=True)
        table.add_column("USD", justify="right", no_wrap=True)
    for gpu in plan.gpus:
        table.add_row(*_cells(gpu, with_run=plan.steps is not None), style=None if gpu.fits else "dim")
    return table


def _cells(gpu: PlannedGpu, *, with_run: bool) -> list[str | Text]:
    row: list[str | Text] = [
        gpu.name,
        Text(f"{gpu.needed_bytes / _GIB:.1f}", "green" if gpu.fits else "red"),
        f"{gpu.memory_bytes / _GIB:.0f}" + ("" if gpu.fits else " no"),
        _or_nothing(gpu.step_seconds, short_seconds),
        _or_nothing(gpu.tokens_per_second, lambda value: f"{value:,.0f}"),
        _or_nothing(gpu.price_usd_per_hour, lambda value: f"{value:.2f}"),
        _or_nothing(gpu.usd_per_million_tokens, lambda value: f"{value:.3f}"),
    ]
    if with_run:
        row += [
            _or_nothing(gpu.run_seconds, lambda value: f"{value / 3600:.1f} h"),
            _or_nothing(gpu.run_usd, lambda value: f"{value:.2f}"),
        ]
    return row


def _or_nothing(value: float | None, form: Callable[[float], str]) -> str:
    return "n/a" if value is None else form(value)


def _notes(plan: Plan) -> Iterator[RenderableType]:
    yield Text()
    yield Text(
        "Times and costs are estimates: the roofline of each device at published efficiencies, list prices.", "dim"
    )
    for told in plan.assumptions:
        yield Text(f"- {told}", "dim")
    for note, names in _grouped(plan.gpus).items():
        yield Text(f"- {', '.join(names)}: {note}", "dim")


def _grouped(gpus: list[PlannedGpu]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            found.setdefault(note, []).append(gpu.name)
    return found
