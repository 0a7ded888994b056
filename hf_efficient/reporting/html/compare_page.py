"""The page of several runs beside each other."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from hf_efficient.recipe.writing import differing_keys
from hf_efficient.reporting.comparison import comparison_rows, letter
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_page import ended_words
from hf_efficient.reporting.labels import all_phases, phase_color, phase_label, phases_in_order
from hf_efficient.reporting.plots.steps import compare_losses, compare_step_times
from hf_efficient.reporting.plots.time import compare_phases
from hf_efficient.reporting.run_data import RunData


def compare_page(runs: Sequence[RunData], written: datetime | None = None) -> str:
    labels = [letter(place) for place in range(len(runs))]
    shown = []
    for label, run in zip(labels, runs, strict=True):
        ended = ended_words(run.account.time.processes[-1])
        shown.append({"letter": label, "name": run.name, "directory": run.directory, "ended": ended})
    return render(
        "compare",
        _sections(runs, labels),
        span=None,
        title=f"{' and '.join(run.name for run in runs[:3])}{' and more' if len(runs) > 3 else ''} · hf_efficient",
        kind="runs side by side",
        command=f"hf-efficient report {shlex.join(run.directory for run in runs)}",
        written=written,
        runs=shown,
    )


def _sections(runs: Sequence[RunData], labels: Sequence[str]) -> list[Section]:
    named = [f"{label} {run.name}" for label, run in zip(labels, runs, strict=True)]
    series = [run.series.steps if run.series is not None and len(run.series.steps) else None for run in runs]
    phases = compare_phases([run.account.time for run in runs], labels)
    return [
        Section("summary", "In short", context={"rows": comparison_rows(runs), "labels": labels}),
        Section("time", "Where the time went", [phases], {"rows": _phase_rows(runs), "labels": labels}, "Time"),
        Section("learning", "Loss", [compare_losses(series, named)], macro="figures"),
        Section("speed", "Step times", [compare_step_times(series, named)], macro="figures"),
        Section("recipe", "Recipes", context=_recipes(runs, labels)),
    ]


def _phase_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    held = [all_phases(run.account.time) for run in runs]
    rows = []
    for name in phases_in_order(dict.fromkeys(name for phases in held for name in phases)):
        seconds = [f"{phases[name]:,.2f}" if name in phases else "" for phases in held]
        rows.append({"label": phase_label(name), "color": phase_color(name), "runs": seconds})
    return rows


def _recipes(runs: Sequence[RunData], labels: Sequence[str]) -> dict[str, Any]:
    known = [(label, run.recipe) for label, run in zip(labels, runs, strict=True) if run.recipe is not None]
    return {
        "labels": [label for label, _ in known],
        "unknown": [label for label, run in zip(labels, runs, strict=True) if run.recipe is None],
        "rows": differing_keys([recipe for _, recipe in known]) if len(known) > 1 else [],
        "enough": len(known) > 1,
    }
