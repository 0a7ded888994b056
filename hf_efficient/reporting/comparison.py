"""Several runs' headline figures in words, beside each other.

Several runs on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.headline import differences, headline, scaling_of
from hf_efficient.reporting.labels import tokens_per_second
from hf_efficient.reporting.run_data import RunData
from hf_efficient.text import count, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "wall_seconds": ("wall time", seconds),
    "training_seconds": ("time of the training steps", seconds),
    "steps": ("optimizer steps", lambda value: f"{value:,.0f}"),
    "non_padding_tokens": ("tokens without padding", lambda value: count(round(value))),
    "non_padding_tokens_per_second": ("throughput, without padding", tokens_per_second),
    "padding_share": ("padding", share),
    "step_p50_seconds": ("step time, median", short_seconds),
    "step_p95_seconds": ("step time, p95", short_seconds),
    "mfu": ("MFU", share),
    "hfu": ("HFU", share),
    "device_peak_allocated_bytes": ("peak memory on the device", lambda value: size(round(value))),
    "peak_rss_bytes": ("peak memory of the host", lambda value: size(round(value))),
    "cost_usd": ("cost", usd),
    "usd_per_million_non_padding_tokens": ("per million tokens without padding", usd),
    "energy_joules": ("energy", kilowatt_hours),
    "co2e_grams": ("CO₂ equivalent", grams),
    "loss_before": ("evaluation loss before", lambda value: f"{value:.4g}"),
    "loss_after": ("evaluation loss after", lambda value: f"{value:.4g}"),
    "training_loss": ("training loss, the last logged", lambda value: f"{value:.4g}"),
    "unattributed_share": ("unattributed", share),
}


@dataclass(frozen=True)
class Change:
    """One run's figure.

    Attributes:
        value: in words; empty where it is not known.
        change: against the first run, ``+12.3%``; empty for the first run, and where it cannot be told.
        kind: ``better``, ``worse``, or empty for what is neither.
    """

    value: str
    change: str = ""
    kind: str = ""


@dataclass(frozen=True)
class ComparisonRow:
    """One figure of every run."""

    label: str
    runs: list[Change]


def letter(place: int) -> str:
    """``A``, ``B``, ...; from the 27th run on ``27``."""
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def comparison_rows(runs: Sequence[RunData]) -> list[ComparisonRow]:
    """The headline figures that at least one run knows, each with its difference from the first run's.

    Runs with different numbers of ranks also have their scaling efficiency.
    """
    rows = []
    for found in differences([headline(run.account, run.series) for run in runs]):
        label, tell = _FIGURES[found.name]
        cells = [
            Change("" if value is None else tell(value), _percent(relative) if place else "", judgement)
            for place, (value, relative, judgement) in enumerate(
                zip(found.values, found.relative, found.judgement, strict=True)
            )
        ]
        rows.append(ComparisonRow(label, cells))
    return [*rows, *_scaling(runs)]


def _scaling(runs: Sequence[RunData]) -> list[ComparisonRow]:
    """Ranks, and what each keeps of the speed that a rank of the first run has; nothing of runs with as many."""
    ranks = [max(1, len(run.account.ranks)) for run in runs]
    if len(set(ranks)) < 2:
        return []
    efficiencies = scaling_of([run.account for run in runs])
    told = ["" if value is None else share(value) for value in efficiencies]
    return [
        ComparisonRow("ranks", [Change(f"{count:,}") for count in ranks]),
        ComparisonRow("scaling efficiency against the first run", [Change(value) for value in told]),
    ]


def _percent(relative: float | None) -> str:
    return "" if relative is None else f"{100 * relative + 0.0:+.1f}%".replace("-0.0%", "+0.0%")


_STYLES = {"better": "green", "worse": "red", "": "dim"}


def comparison_renderables(runs: Sequence[RunData]) -> list[RenderableType]:
    """Which runs, and a table of their headline figures with the differences from the first."""
    names = Table.grid(padding=(0, 2, 0, 0))
    for place, run in enumerate(runs):
        names.add_row(Text(letter(place), "bold"), Text(run.name), Text(run.directory, "dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for place in range(len(runs)):
        table.add_column(letter(place), justify="right", no_wrap=True)
        if place:
            table.add_column("", justify="right", no_wrap=True)
    for row in comparison_rows(runs):
        cells: list[Text] = []
        for place, each in enumerate(row.runs):
            cells.append(Text(each.value or "n/a"))
            if place:
                cells.append(Text(each.change, _STYLES[each.kind]))
        table.add_row(Text(row.label), *cells)
    return [names, Text(), table]
