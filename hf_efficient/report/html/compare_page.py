"""The page of several runs beside each other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime

from hf_efficient.report.comparison_rows import letter
from hf_efficient.report.html.render import render
from hf_efficient.report.html.sections.compare import compare_sections
from hf_efficient.report.html.sections.segments import told_end
from hf_efficient.report.run_data import RunData

__all__ = ["compare_page"]


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
