"""What a plan takes for granted, and what it does not know."""

from __future__ import annotations

from hf_efficient.records.plan import Plan
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plan_notes import grouped_notes, spot_saves

__all__ = ["planned_notes_section"]


def planned_notes_section(plan: Plan) -> Section:
    """A list."""
    saves = spot_saves(plan.gpus, plan.steps)
    gaps = [f"{', '.join(names)}: {note}" for note, names in grouped_notes(plan.gpus).items()]
    context = {"assumptions": [*plan.assumptions, *([saves] if saves else [])], "gaps": gaps}
    return Section("planned_notes", "Taken for granted", context=context, short="Assumptions")
