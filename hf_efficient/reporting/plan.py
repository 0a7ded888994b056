"""How a plan is spread over several GPUs, in words.

Remarks of a plan, in words.

The data of a plan on a terminal: how long the examples are, and what each kind of batch makes of them.

On a terminal: what to change in a recipe for an accelerator, and the most that fits there.

The accelerators of a plan as a table on a terminal, as wide as that is.

A plan on a terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hf_efficient.records.plan import (
    Plan,
    PlannedAdvice,
    PlannedBatching,
    PlannedChange,
    PlannedData,
    PlannedGpu,
    PlannedLargest,
    PlannedOutcome,
    PlannedRanks,
)
from hf_efficient.reporting.labels import category_label, phase_label, short_number
from hf_efficient.text import count, flops, share, short_seconds, size, usd

_NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp2": "FSDP2"}
_OFFLOADED = {"optimizer": "optimizer state", "parameters": "weights"}


def rank_renderables(ranks: PlannedRanks | None) -> Iterator[RenderableType]:
    """How many, by which strategy, and what the host holds; nothing for one process alone."""
    if ranks is None:
        return
    gpus = f"{ranks.count} GPU" if ranks.count == 1 else f"{ranks.count} GPUs"
    yield Text(f"On {gpus} with {strategy_label(ranks.strategy)}; memory is that of each.")
    if ranks.offloaded:
        what = offloaded_label(ranks.offloaded)
        label, held = offload_figure(ranks)
        yield Text(f"{label}: {held} in the machine for the {what} of all.")


def offload_figure(ranks: PlannedRanks) -> tuple[str, str]:
    """Where it lies what is offloaded, and how much of it."""
    if ranks.disk_bytes:
        return "NVMe disk", size(ranks.disk_bytes)
    return "Host memory", size(ranks.host_bytes)


def strategy_label(name: str) -> str:
    """A strategy as its makers write it."""
    return _NAMES.get(name, name)


def offloaded_label(offloaded: Sequence[str]) -> str:
    """What is offloaded, in words."""
    return " and ".join(_OFFLOADED.get(one, one) for one in offloaded)


def spot_saves(gpus: Sequence[PlannedGpu], steps: int | None = None) -> str:
    """How long a save on spot machines takes, and after how many steps it is cheapest; empty where not known.

    Args:
        gpus: of the plan.
        steps: of the run; None where not known.
    """
    found = [(gpu.name, gpu.spot, gpu.spot.save_every_steps) for gpu in gpus if gpu.fits and gpu.spot is not None]
    known = [(name, every) for name, _, every in found if every is not None]
    if not known:
        return ""
    spot = found[0][1]
    told = [f"spot: a save writes {size(spot.checkpoint_bytes)} in {short_seconds(spot.checkpoint_seconds)}"]
    within = [f"{every:,} on {name}" for name, every in known if steps is None or every < steps]
    beyond = [name for name, every in known if steps is not None and every >= steps]
    if within:
        told.append(f"train.save_steps that costs least: {', '.join(within)}")
    if beyond:
        told.append(f"no save before the end of the run costs least on {', '.join(beyond)}")
    return "; ".join(told)


def grouped_notes(gpus: Sequence[PlannedGpu]) -> dict[str, list[str]]:
    """Each remark once, with the accelerators that it is about."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            found.setdefault(note, []).append(gpu.name)
    return found


def data_renderables(data: PlannedData) -> list[RenderableType]:
    """A sentence, and a table of the kinds of batches where there are several."""
    return [Text(f"\nData: {data_sentence(data)}"), *([_kinds(data.batchings)] if data.batchings else [])]


def data_sentence(data: PlannedData) -> str:
    """How long the examples are, and what they come to."""
    return (
        f"{data.examples:,} examples of {data.tokens:,} tokens, the longest {data.longest_tokens:,}; "
        f"{share(data.padding_share)} of a step is padding.{_evaluated(data)}"
    )


def _evaluated(data: PlannedData) -> str:
    if not data.evaluations:
        return ""
    times = "once" if data.evaluations == 1 else f"{data.evaluations:,} times"
    return f" {data.evaluation_rows:,} rows are evaluated {times}."


def _kinds(kinds: list[PlannedBatching]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("an epoch's batches")
    for name in ("positions", "padding", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in kinds:
        name = f"  {one.name}{' (the recipe)' if one.chosen else ''}"
        table.add_row(name, f"{one.epoch_positions:,}", share(one.padding_share), f"{one.epoch_steps:,}")
    return table


_GIB = 2**30


def advice_renderables(advice: PlannedAdvice) -> list[RenderableType]:
    """The ranked changes, and what was left out."""
    parts: list[RenderableType] = [Text(), Text(advice_title(advice), "bold")]
    if not advice.changes:
        return parts
    parts.append(_table(advice))
    if not any(change.after.fits for change in advice.changes):
        parts.append(Text("None of them makes it fit: it takes a smaller model or a larger accelerator."))
    return [*parts, *(Text(f"- left out: {told}", "dim") for told in advice.left_out)]


def advice_title(advice: PlannedAdvice) -> str:
    """What the changes are for."""
    what = "To run faster on" if advice.before.fits else "To fit"
    head = f"{what} {advice.accelerator} ({advice.usable_memory_bytes / _GIB:.1f} GiB)"
    if not advice.changes:
        return f"{head}: no change of the recipe is known that would help."
    return f"{head}, each change simulated, the best first"


def largest_renderables(largest: PlannedLargest, rows: int, tokens: int) -> list[RenderableType]:
    """The largest micro-batch and the longest rows.

    Args:
        largest: what was found.
        rows, tokens: of the recipe's own micro-batch.
    """
    head = Text(f"The most that fits {largest.accelerator}", "bold")
    return [Text(), head, *(Text(f"  {line}") for line in largest_lines(largest, rows, tokens))]


def largest_lines(largest: PlannedLargest, rows: int, tokens: int) -> list[str]:
    """The largest micro-batch and the longest rows, a line each; the arguments are ``largest_renderables``'."""
    return [_most_rows(largest, tokens), _most_tokens(largest, rows)]


def override_lines(change: PlannedChange) -> list[str]:
    """A change as it is written on the command line."""
    return [f"{key}={_written(value)}" for key, value in change.overrides.items()]


def _most_rows(largest: PlannedLargest, tokens: int) -> str:
    if largest.micro_batch_rows == 0:
        return f"not even one row of {tokens:,} tokens"
    more = " or more" if largest.rows_bounded else ""
    noun = "row" if largest.micro_batch_rows == 1 else "rows"
    return (
        f"{largest.micro_batch_rows:,}{more} {noun} of {tokens:,} tokens: "
        f"train.per_device_train_batch_size={largest.micro_batch_rows}"
    )


def _most_tokens(largest: PlannedLargest, rows: int) -> str:
    noun = "row" if rows == 1 else "rows"
    if largest.row_tokens == 0:
        return f"not even {rows:,} {noun} of {largest.row_tokens_step} tokens"
    bound = ", as far as the model's positions go" if largest.tokens_bounded else ""
    return f"{rows:,} {noun} of {largest.row_tokens:,} tokens{bound}: train.max_length={largest.row_tokens}"


def _table(advice: PlannedAdvice) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("GiB", "", "step", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change", overflow="fold")
    table.add_row(*_figures(advice.before), Text("as it is"))
    for change in advice.changes:
        table.add_row(*_figures(change.after), _words(change))
    return table


def _figures(outcome: PlannedOutcome) -> list[str | Text]:
    rate = outcome.tokens_per_second
    return [
        Text(f"{outcome.needed_bytes / _GIB:.1f}", "green" if outcome.fits else "red"),
        "fits" if outcome.fits else "no",
        "n/a" if outcome.step_seconds is None else short_seconds(outcome.step_seconds),
        "n/a" if rate is None else f"{rate:,.0f}",
    ]


def _words(change: PlannedChange) -> Text:
    told = Text("\n".join(override_lines(change)))
    if not change.keeps_training:
        told.append("\nchanges what is learned", "yellow")
    told.append(f"\n+ {change.gives}\n- {change.costs}", "dim")
    return told


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


FRONTIER_MARK = "*"
_PLAN_GPUS_GIB = 2**30
_Cell = Callable[[PlannedGpu], "str | Text"]


@dataclass(frozen=True)
class _Column:
    head: str
    cell: _Cell
    left_out: int = 0
    """Where there is no room: 1 goes first; 0 always stays."""


class GpuTable:
    """A row per accelerator. Where the terminal is narrow, gaps shrink, and what others tell too is left out."""

    def __init__(self, plan: Plan) -> None:
        self._gpus = plan.gpus
        spot = any(gpu.market == "spot" for gpu in plan.gpus)
        beside = any(gpu.spot is not None for gpu in plan.gpus) and not spot
        money = _of_run(spot, beside) if plan.steps is not None else _of_tokens(spot, beside)
        exposed = [] if plan.ranks is None else [_EXPOSED]
        self._columns = [*_COMMON, *exposed, *money]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for gap, columns in self._widths():
            table = self._table(gap, columns)
            if Measurement.get(console, options.update(max_width=1000), table).maximum <= options.max_width:
                break
        yield table

    def _widths(self) -> Iterator[tuple[int, list[_Column]]]:
        """From the widest on; the last one has to do."""
        columns = self._columns
        yield from ((gap, columns) for gap in (2, 1))
        for gone in (1, 2, 3):
            columns = [one for one in columns if one.left_out != gone]
            yield 1, columns

    def _table(self, gap: int, columns: Sequence[_Column]) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
        table.add_column("accelerator", overflow="fold")
        for column in columns:
            table.add_column(column.head, justify="right", no_wrap=True)
        for gpu in self._gpus:
            name = f"{gpu.name} {FRONTIER_MARK}" if gpu.on_frontier else gpu.name
            table.add_row(name, *(column.cell(gpu) for column in columns), style=None if gpu.fits else "dim")
        return table


def _or_nothing(value: float | None, form: Callable[[float], str]) -> str:
    return "n/a" if value is None else form(value)


def _needed(gpu: PlannedGpu) -> Text:
    return Text(f"{gpu.needed_bytes / _PLAN_GPUS_GIB:.1f}", "green" if gpu.fits else "red")


def _usd(value: float | None) -> str:
    return _or_nothing(value, lambda paid: usd(paid).removeprefix("$"))


def _short(value: float | None, scale: float = 1.0) -> str:
    return _or_nothing(value, lambda known: short_number(known / scale))


_COMMON = [
    _Column("GiB of", _needed),
    _Column("", lambda gpu: f"{gpu.usable_memory_bytes / _PLAN_GPUS_GIB:.1f}" + ("" if gpu.fits else " no")),
    _Column("step", lambda gpu: _or_nothing(gpu.step_seconds, short_seconds), 1),
    _Column("tokens/s", lambda gpu: _or_nothing(gpu.tokens_per_second, "{:,.0f}".format), 3),
    _Column("USD/h", lambda gpu: _or_nothing(gpu.price_usd_per_hour, "{:.2f}".format), 2),
]

_EXPOSED = _Column("comm", lambda gpu: _or_nothing(gpu.bound_shares.get("communication"), share), 2)


def _of_run(spot: bool, beside: bool) -> list[_Column]:
    found = [_Column("hours", lambda gpu: _short(gpu.run_seconds, 3600))]
    found.append(_Column("spot USD" if spot else "USD", lambda gpu: _usd(gpu.run_usd)))
    if beside:
        found.append(_Column("spot", lambda gpu: _usd(gpu.spot.run_usd if gpu.spot else None)))
    return [
        *found,
        _Column("kWh", lambda gpu: _short(gpu.run_kwh)),
        _Column("kgCO2e", lambda gpu: _short(gpu.run_co2e_grams, 1000)),
    ]


def _of_tokens(spot: bool, beside: bool) -> list[_Column]:
    found = [_Column("spot/M" if spot else "USD/M", lambda gpu: _short(gpu.usd_per_million_tokens))]
    if beside:
        found.append(_Column("spot/M", lambda gpu: _short(gpu.spot.usd_per_million_tokens if gpu.spot else None)))
    return [
        *found,
        _Column("kWh/M", lambda gpu: _short(gpu.kwh_per_million_tokens)),
        _Column("gCO2e/M", lambda gpu: _short(gpu.co2e_grams_per_million_tokens)),
    ]


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
