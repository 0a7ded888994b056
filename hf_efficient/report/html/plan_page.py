"""The page of a plan."""

from __future__ import annotations

from datetime import datetime

from hf_efficient.records.plan import Plan
from hf_efficient.report.html.render import render
from hf_efficient.report.html.sections.planned_advice import planned_advice_section
from hf_efficient.report.html.sections.planned_data import planned_data_section
from hf_efficient.report.html.sections.planned_gpus import planned_gpus_section
from hf_efficient.report.html.sections.planned_memory import planned_memory_section
from hf_efficient.report.html.sections.planned_notes import planned_notes_section
from hf_efficient.report.html.sections.planned_summary import planned_summary

__all__ = ["plan_page"]


def plan_page(plan: Plan, command: str, written: datetime | None = None) -> str:
    """What a recipe needs, takes and costs before it runs.

    Args:
        plan: of the recipe.
        command: that makes the page again; told in the footer.
        written: when; told in the footer.
    """
    made = [
        planned_summary(plan),
        planned_memory_section(plan),
        planned_data_section(plan),
        planned_gpus_section(plan),
        planned_advice_section(plan),
        planned_notes_section(plan),
    ]
    return render(
        "plan.html.jinja",
        [section for section in made if section is not None],
        span=None,
        title=f"{plan.recipe}: plan · hf_efficient",
        kind="plan",
        command=command,
        written=written,
        plan=plan,
        fits=sum(gpu.fits for gpu in plan.gpus),
    )
