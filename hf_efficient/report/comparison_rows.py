"""Several runs' headline figures in words, beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_efficient.account.headline import differences, headline
from hf_efficient.account.scaling import scaling_of
from hf_efficient.report.numbers import tokens_per_second
from hf_efficient.report.run_data import RunData
from hf_efficient.units import count, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

__all__ = ["Change", "ComparisonRow", "comparison_rows", "letter"]

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
