"""The few figures that a run is told in first, and how those of several runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries

__all__ = ["BETTER", "TOTALS", "Difference", "differences", "headline"]

BETTER = {
    "wall_seconds": "less",
    "training_seconds": "less",
    "non_padding_tokens_per_second": "more",
    "padding_share": "less",
    "step_p50_seconds": "less",
    "step_p95_seconds": "less",
    "mfu": "more",
    "hfu": "more",
    "device_peak_allocated_bytes": "less",
    "peak_rss_bytes": "less",
    "cost_usd": "less",
    "usd_per_million_non_padding_tokens": "less",
    "energy_joules": "less",
    "co2e_grams": "less",
    "loss_after": "less",
}
"""Which way a figure is better; those of ``headline`` that are not here are neither."""

TOTALS = ("wall_seconds", "training_seconds", "cost_usd", "energy_joules", "co2e_grams")
"""What grows with the steps: between runs of different lengths neither is better."""

_ALIKE = 0.0005


def headline(account: RunAccount, series: RunSeries | None = None) -> dict[str, float | None]:
    """The figures by name; None where one is not known.

    ``loss_before`` is that of an evaluation before the first step, ``loss_after`` that of the last one after some step,
    ``training_loss`` the last that was logged.
    """
    wall, memory, tokens = account.time.wall_seconds, account.memory, account.tokens
    losses = [each for each in account.evaluations if each.metrics.get("loss") is not None]
    logged = [loss for loss in series.steps.loss if loss is not None] if series else []
    return {
        "wall_seconds": wall,
        "training_seconds": account.time.training_seconds,
        "steps": account.steps.count,
        "non_padding_tokens": tokens.non_padding,
        "non_padding_tokens_per_second": tokens.non_padding_tokens_per_second,
        "padding_share": tokens.padding_share,
        "step_p50_seconds": account.steps.p50_seconds,
        "step_p95_seconds": account.steps.p95_seconds,
        "mfu": account.work.mfu,
        "hfu": account.work.hfu,
        "device_peak_allocated_bytes": memory.device_peak_allocated_bytes,
        "peak_rss_bytes": memory.peak_rss_bytes,
        "cost_usd": account.money.cost_usd,
        "usd_per_million_non_padding_tokens": account.money.usd_per_million_non_padding_tokens,
        "energy_joules": account.energy.joules,
        "co2e_grams": account.energy.co2e_grams,
        "loss_before": losses[0].metrics["loss"] if losses and losses[0].step == 0 else None,
        "loss_after": losses[-1].metrics["loss"] if losses and losses[-1].step > 0 else None,
        "training_loss": logged[-1] if logged else None,
        "unattributed_share": account.time.unattributed_seconds / wall if wall > 0 else None,
    }


@dataclass(frozen=True)
class Difference:
    """One figure of several runs.

    Attributes:
        name: of ``headline``.
        values: run by run.
        relative: value / that of the first run - 1; None where either is not known, or the first is 0.
        judgement: ``better`` or ``worse`` than the first run; empty where it is neither, alike to 0.05%, or a total of
            runs that did not do the same number of steps.
    """

    name: str
    values: list[float | None]
    relative: list[float | None]
    judgement: list[str]


def differences(headlines: Sequence[dict[str, float | None]]) -> list[Difference]:
    """Every figure against the first run's; figures that no run knows are left out."""
    found = []
    for name in headlines[0] if headlines else ():
        values = [each.get(name) for each in headlines]
        if all(value is None for value in values):
            continue
        relative = [None if value is None or not values[0] else value / values[0] - 1 for value in values]
        judgement = [
            "" if name in TOTALS and each["steps"] != headlines[0]["steps"] else _judgement(name, change)
            for each, change in zip(headlines, relative, strict=True)
        ]
        found.append(Difference(name, values, relative, judgement))
    return found


def _judgement(name: str, relative: float | None) -> str:
    way = BETTER.get(name)
    if way is None or relative is None or abs(relative) < _ALIKE:
        return ""
    return "better" if (relative > 0) == (way == "more") else "worse"
