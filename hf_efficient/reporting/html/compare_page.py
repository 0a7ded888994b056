"""The sections of the page of several runs.

The page of several runs beside each other.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from hf_efficient.recipe.writing import differing_keys
from hf_efficient.records.steps import PHASES
from hf_efficient.reporting.comparison import comparison_rows, letter
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_page import told_end
from hf_efficient.reporting.labels import phase_color, phase_label
from hf_efficient.reporting.plots.steps import compare_losses, compare_step_times
from hf_efficient.reporting.plots.time import compare_phases
from hf_efficient.reporting.run_data import RunData


def compare_sections(runs: Sequence[RunData]) -> list[Section]:
    """Figures, time, loss and step times, recipes."""
    labels = [letter(place) for place in range(len(runs))]
    named = [f"{label} {run.name}" for label, run in zip(labels, runs, strict=True)]
    series = [run.series.steps if run.series is not None and len(run.series.steps) else None for run in runs]
    rows = comparison_rows(runs)
    return [
        Section("summary", "In short", context={"rows": rows, "labels": labels}, template="compare_figures"),
        Section(
            "time",
            "Where the time went",
            [compare_phases([run.account.time for run in runs], labels)],
            {"rows": _phase_rows(runs), "labels": labels},
            "Time",
            "compare_time",
        ),
        Section("learning", "Loss", [compare_losses(series, named)], template="figures"),
        Section("speed", "Step times", [compare_step_times(series, named)], template="figures"),
        Section("recipe", "Recipes", context=_recipes(runs, labels), template="compare_recipes"),
    ]


def _phase_rows(runs: Sequence[RunData]) -> list[dict[str, object]]:
    held = [{**run.account.time.phase_seconds, "unattributed": run.account.time.unattributed_seconds} for run in runs]
    names = dict.fromkeys(name for phases in held for name in phases)
    ordered = sorted(names, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))
    return [
        {
            "label": phase_label(name),
            "color": phase_color(name),
            "runs": [f"{phases[name]:,.2f}" if name in phases else "" for phases in held],
        }
        for name in ordered
    ]


def _recipes(runs: Sequence[RunData], labels: Sequence[str]) -> dict[str, object]:
    known = [(label, run.recipe) for label, run in zip(labels, runs, strict=True) if run.recipe is not None]
    return {
        "labels": [label for label, _ in known],
        "unknown": [label for label, run in zip(labels, runs, strict=True) if run.recipe is None],
        "rows": differing_keys([recipe for _, recipe in known]) if len(known) > 1 else [],
        "enough": len(known) > 1,
    }


def compare_page(runs: Sequence[RunData], written: datetime | None = None) -> str:
    """Headline figures with their differences, phases, losses and step times, and what their recipes differ in.

    Args:
        runs: the first one is what the others are compared with.
        written: when; told in the footer.
    """
    shown = [
        {
            "letter": letter(place),
            "name": run.name,
            "directory": run.directory,
            "ended": told_end(run.account.time.processes[-1]),
        }
        for place, run in enumerate(runs)
    ]
    return render(
        "compare.html.jinja",
        compare_sections(runs),
        span=None,
        title=f"{' and '.join(run.name for run in runs[:3])}{' and more' if len(runs) > 3 else ''} · hf_efficient",
        kind="runs side by side",
        command=f"hf-efficient report {shlex.join(run.directory for run in runs)}",
        written=written,
        runs=shown,
    )
