"""What the deeper instruments found, and what each of them cost."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.profile_rows import instrument_rows, operator_cells, operator_headings, operator_summary
from hf_efficient.report.run_data import RunData

__all__ = ["profile_section"]

_MOST_OPERATORS = 25


def profile_section(run: RunData) -> Section | None:
    """The dearest operators and the instruments; None of a run without instruments."""
    profile = run.account.profile
    if profile is None:
        return None
    context: dict[str, object] = {"instruments": instrument_rows(profile.instruments), "summary": "", "rows": []}
    table = profile.operators
    if table is not None and table.operators:
        shown = table.operators[:_MOST_OPERATORS]
        context |= {
            "summary": operator_summary(table),
            "headings": operator_headings(table),
            "rows": [operator_cells(table, operator) for operator in shown],
            "left_out": len(table.operators) - len(shown) + table.left_out,
        }
    return Section("profile", "Profile", context=context)
