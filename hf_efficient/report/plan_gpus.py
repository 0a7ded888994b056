"""The accelerators of a plan as a table on a terminal, as wide as that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hf_efficient.records.plan import Plan
from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.report.numbers import short_number
from hf_efficient.units import share, short_seconds, usd

__all__ = ["FRONTIER_MARK", "GpuTable"]

FRONTIER_MARK = "*"
_GIB = 2**30
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
    return Text(f"{gpu.needed_bytes / _GIB:.1f}", "green" if gpu.fits else "red")


def _usd(value: float | None) -> str:
    return _or_nothing(value, lambda paid: usd(paid).removeprefix("$"))


def _short(value: float | None, scale: float = 1.0) -> str:
    return _or_nothing(value, lambda known: short_number(known / scale))


_COMMON = [
    _Column("GiB of", _needed),
    _Column("", lambda gpu: f"{gpu.usable_memory_bytes / _GIB:.1f}" + ("" if gpu.fits else " no")),
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
