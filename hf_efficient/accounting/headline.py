"""The few figures that stand first for a run, how those of several runs differ, and phases by part of a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_efficient.estimate.throughput import scaling_efficiency
from hf_efficient.facts.tables import key_table
from hf_efficient.records.account import RunAccount
from hf_efficient.records.series import RunSeries
from hf_efficient.records.steps import CLOSING_PHASES, COARSE_PHASES, STARTUP_PHASES, STEP_PHASES

_APART = ("evaluation", "checkpointing")
GROUPS: dict[str, tuple[str, ...]] = {
    "before training": tuple(name for name in STARTUP_PHASES if name != "compilation"),
    "training": tuple(name for name in ("compilation", *STEP_PHASES, *COARSE_PHASES) if name not in _APART),
    "evaluations and checkpoints": _APART,
    "after training": CLOSING_PHASES,
    "unattributed": ("unattributed",),
}
"""Every phase, by the part of a run that it belongs to."""


@dataclass(frozen=True)
class PhaseGroup:
    """One part of a run, of ``GROUPS``, or ``other`` for phases of a newer version."""

    name: str
    total: float
    phases: dict[str, float]


def grouped(by_phase: Mapping[str, float]) -> list[PhaseGroup]:
    """Seconds, dollars or joules by phase, put together; parts in which nothing occurred are left out."""
    known = {phase for phases in GROUPS.values() for phase in phases}
    parts = {**GROUPS, "other": tuple(name for name in by_phase if name not in known)}
    found = []
    for name, phases in parts.items():
        held = {phase: by_phase[phase] for phase in phases if phase in by_phase}
        if held:
            found.append(PhaseGroup(name, math.fsum(held.values()), held))
    return found


BETTER = {name: way for name, (_, _, *ways) in key_table("report_words")["compared"].items() for way in ways}
"""Which way a figure is better; those that are not here are neither."""

TOTALS = ("wall_seconds", "training_seconds", "cost_usd", "energy_joules", "co2e_grams")
"""What grows with the steps: between runs of different lengths neither is better."""


def headline(account: RunAccount, series: RunSeries | None = None) -> dict[str, float | None]:
    """The figures by name; None where unknown. ``loss_before`` precedes the first step."""
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


def scaling_of(accounts: Sequence[RunAccount]) -> list[float | None]:
    """Scaling efficiency of each run against the first, in non-padding tokens of all ranks."""
    of_each = [(one.tokens.non_padding_tokens_per_second, max(1, len(one.ranks))) for one in accounts]
    return [scaling_efficiency(*one, *of_each[0]) for one in of_each]
