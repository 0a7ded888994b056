"""The page of runs beside a first one."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hf_efficient.records.comparison import RunComparison
from hf_efficient.reporting.comparison import changed_table, comparison_rows, note_lines, regression_lines
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_page import ended_words
from hf_efficient.reporting.labels import all_phases, phase_color, phase_label, phases_in_order
from hf_efficient.reporting.plots.steps import compare_losses, compare_step_times
from hf_efficient.reporting.plots.time import compare_phases
from hf_efficient.reporting.run_data import RunData


def compare_page(
    found: RunComparison, runs: Sequence[RunData], written: datetime | None = None, command: str = ""
) -> str:
    """``runs``: the first of each side; ``command`` as it was given, default: with their folders."""
    letters = [side.letter for side in found.sides]
    shown = []
    for side, run in zip(found.sides, runs, strict=True):
        ended = ended_words(run.account.time.processes[-1])
        more = f" and {len(side.directories) - 1} more" if len(side.directories) > 1 else ""
        shown.append({"letter": side.letter, "name": run.name, "directory": f"{run.directory}{more}", "ended": ended})
    return render(
        "compare",
        _sections(found, runs, letters),
        span=None,
        title=f"{' and '.join(run.name for run in runs[:3])}{' and more' if len(runs) > 3 else ''} · hf_efficient",
        kind="runs compared",
        command=command or f"hf-efficient compare {shlex.join(run.directory for run in runs)}",
        written=written,
        runs=shown,
    )


def _sections(found: RunComparison, runs: Sequence[RunData], labels: Sequence[str]) -> list[Section]:
    named = [f"{label} {run.name}" for label, run in zip(labels, runs, strict=True)]
    series = [run.series.steps if run.series is not None and len(run.series.steps) else None for run in runs]
    accounts = [run.account for run in runs]
    phases = compare_phases([account.time for account in accounts], labels)
    summary = {"rows": comparison_rows(found, accounts), "labels": labels, "notes": list(note_lines(found))}
    unknown = [label for label, run in zip(labels, runs, strict=True) if run.recipe is None]
    return [
        Section("summary", "In short", context={**summary, "regressions": list(regression_lines(found))}),
        Section("changed", "What changed", context={"table": changed_table(found), "unknown": unknown}),
        Section("time", "Where the time went", [phases], {"rows": _phase_rows(runs), "labels": labels}, "Time"),
        Section("learning", "Loss", [compare_losses(series, named)], macro="figures"),
        Section("speed", "Step times", [compare_step_times(series, named)], macro="figures"),
    ]


def _phase_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    held = [all_phases(run.account.time) for run in runs]
    rows = []
    for name in phases_in_order(dict.fromkeys(name for phases in held for name in phases)):
        seconds = [f"{phases[name]:,.2f}" if name in phases else "" for phases in held]
        rows.append({"label": phase_label(name), "color": phase_color(name), "runs": seconds})
    return rows
