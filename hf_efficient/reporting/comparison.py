"""Several runs' headline figures beside each other: the rows for terminal and page, and the table on a terminal."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.headline import differences, headline, scaling_of
from hf_efficient.records.account import RunAccount
from hf_efficient.reporting.labels import rounded_size, signed_percent, tokens_per_second
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.terminal import table
from hf_efficient.text import count, grams, kilowatt_hours, seconds, share, short_seconds, usd

_STYLES = {"better": "green", "worse": "red", "": "dim"}
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "wall_seconds": ("wall time", seconds),
    "training_seconds": ("time of the training steps", seconds),
    "steps": ("optimizer steps", "{:,.0f}".format),
    "non_padding_tokens": ("tokens without padding", lambda value: count(round(value))),
    "non_padding_tokens_per_second": ("throughput, without padding", tokens_per_second),
    "padding_share": ("padding", share),
    "step_p50_seconds": ("step time, median", short_seconds),
    "step_p95_seconds": ("step time, p95", short_seconds),
    "mfu": ("MFU", share),
    "hfu": ("HFU", share),
    "device_peak_allocated_bytes": ("peak memory on the device", rounded_size),
    "peak_rss_bytes": ("peak memory of the host", rounded_size),
    "cost_usd": ("cost", usd),
    "usd_per_million_non_padding_tokens": ("per million tokens without padding", usd),
    "energy_joules": ("energy", kilowatt_hours),
    "co2e_grams": ("CO₂ equivalent", grams),
    "loss_before": ("evaluation loss before", "{:.4g}".format),
    "loss_after": ("evaluation loss after", "{:.4g}".format),
    "training_loss": ("training loss, the last logged", "{:.4g}".format),
    "unattributed_share": ("unattributed", share),
}


class Change(NamedTuple):
    """A run's figure, its change against the first run (``+12.3%``), and whether that is ``better`` or ``worse``."""

    value: str
    change: str = ""
    kind: str = ""


class ComparisonRow(NamedTuple):
    label: str
    runs: list[Change]


def letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place + 1)


def comparison_rows(runs: Sequence[RunData]) -> list[ComparisonRow]:
    """The headline figures that at least one run has; across numbers of ranks also the scaling efficiency."""
    rows = []
    for found in differences([headline(run.account, run.series) for run in runs]):
        label, form = _FIGURES[found.name]
        changes = ["", *map(signed_percent, found.relative[1:])]
        values = ["" if value is None else form(value) for value in found.values]
        rows.append(ComparisonRow(label, list(map(Change, values, changes, found.judgement))))
    return [*rows, *_scaling([run.account for run in runs])]


def _scaling(accounts: Sequence[RunAccount]) -> list[ComparisonRow]:
    """Ranks, and what each keeps of the speed that a rank of the first run has; nothing of runs with as many."""
    ranks = [max(1, len(account.ranks)) for account in accounts]
    if len(set(ranks)) < 2:
        return []
    words = ["" if value is None else share(value) for value in scaling_of(accounts)]
    return [
        ComparisonRow("ranks", [Change(f"{number:,}") for number in ranks]),
        ComparisonRow("scaling efficiency against the first run", [Change(value) for value in words]),
    ]


def comparison_renderables(runs: Sequence[RunData]) -> list[RenderableType]:
    names = Table.grid(padding=(0, 2, 0, 0))
    for place, run in enumerate(runs):
        names.add_row(Text(letter(place), "bold"), Text(run.name), Text(run.directory, "dim"))
    headings = [letter(0), *(cell for place in range(1, len(runs)) for cell in (letter(place), ""))]
    made = table("", *headings)
    for row in comparison_rows(runs):
        cells: list[Text] = []
        for place, each in enumerate(row.runs):
            change = [Text(each.change, _STYLES[each.kind])] if place else []
            cells += [Text(each.value or "n/a"), *change]
        made.add_row(Text(row.label, no_wrap=True), *cells)
    return [names, Text(), made]
