"""The tables that ``benchmarks/planted.py`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from planted_runs.gains import Applied
from planted_runs.summary import Judged, Score, confusion

__all__ = ["confusion_table", "findings_table", "gains_table", "score_lines", "traceml_verdict"]


def traceml_verdict(summary: Mapping[str, Any] | None) -> str:
    """The kind of TraceML's primary diagnosis, and those of its sections that say more than that all is normal."""
    if summary is None:
        return ""
    primary = summary.get("primary_diagnosis") or {}
    sections = [(summary.get(name) or {}).get("diagnosis") or {} for name in ("system", "process", "step_memory")]
    more = [one["kind"] for one in sections if one.get("kind") not in (None, "NORMAL", "NO_DATA", "BALANCED", "NO_GPU")]
    return ", ".join([str(primary.get("kind", "no verdict")), *more])


def findings_table(judged: Sequence[Judged], verdicts: Mapping[str, str]) -> Table:
    """A line per run: what was planted, what was found, whether that is right; TraceML's verdict where there is one."""
    table = Table("run", "planted", "first finding", "other findings", "right", title="Planted and found")
    if verdicts:
        table.add_column("TraceML")
    for one in judged:
        others = ", ".join(f"{rule}{'' if rule in one.alarms else ' (info)'}" for rule in one.others)
        first = f"{one.first}{'' if one.first in one.alarms else ' (info)'}" if one.first else "nothing"
        cells = [one.name, " or ".join(one.expected) or "healthy", first, others, "yes" if one.right else "[red]no[/]"]
        table.add_row(*cells, *([verdicts.get(one.name, "")] if verdicts else []))
    return table


def confusion_table(judged: Sequence[Judged]) -> Table:
    """Planted by found, as counts; only pairs that occurred."""
    table = Table("planted", "found", "runs", title="Confusion")
    for (planted, found), count in sorted(confusion(judged).items()):
        table.add_row(planted, found if planted in (found, "healthy") else f"[red]{found}[/]", str(count))
    return table


def score_lines(counts: Score) -> str:
    """In a sentence or two."""
    return (
        f"{counts.right} of {counts.faults} faults have their cause ranked first; "
        f"{counts.quiet} of {counts.healthy} healthy runs have no finding above info."
    )


def gains_table(applied: Mapping[str, Applied]) -> Table:
    """Predicted and achieved gains, as shares of the loop's time per token without padding."""
    columns = ("run", "remedy", "predicted", "achieved", "ratio", "in 0.5 to 2", "noise", "finding gone")
    table = Table(*columns, title="Gains, predicted and achieved")
    for name, one in applied.items():
        check = one.check
        change = " ".join(f"{key}={value}" for key, value in one.prescription.overrides.items())
        table.add_row(
            name,
            change or one.prescription.what,
            "none" if check.predicted is None else f"{check.predicted:.1%}",
            f"{check.achieved:.1%}",
            "" if check.ratio is None else f"{check.ratio:.2f}",
            "" if check.within is None else "yes" if check.within else "[red]no[/]",
            f"{check.noise:.1%}",
            "yes" if one.gone else "no",
        )
    return table
