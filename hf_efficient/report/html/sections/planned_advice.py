"""What to change in a planned recipe, and the most that fits."""

from __future__ import annotations

from typing import Any

from hf_efficient.records.plan import Plan
from hf_efficient.records.planned_advice import PlannedOutcome
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plan_advice import advice_title, largest_lines, override_lines
from hf_efficient.units import short_seconds, size

__all__ = ["planned_advice_section"]


def planned_advice_section(plan: Plan) -> Section | None:
    """None where neither was asked for."""
    advice, largest = plan.advice, plan.largest
    if advice is None and largest is None:
        return None
    rows: list[dict[str, Any]] = []
    if advice is not None:
        rows.append({"overrides": ["as it is"], **_figures(advice.before)})
        rows += [
            {
                "overrides": override_lines(change),
                "gives": change.gives,
                "costs": change.costs,
                "keeps": change.keeps_training,
                **_figures(change.after),
            }
            for change in advice.changes
        ]
    context = {
        "title": advice_title(advice) if advice is not None else "",
        "rows": rows,
        "left_out": advice.left_out if advice is not None else [],
        "helps": advice is not None and any(change.after.fits for change in advice.changes),
        "largest": largest_lines(largest, plan.micro_batch_rows, plan.row_tokens) if largest is not None else [],
        "largest_of": largest.accelerator if largest is not None else "",
    }
    return Section("planned_advice", "What to change", context=context, short="Advice")


def _figures(outcome: PlannedOutcome) -> dict[str, Any]:
    rate = outcome.tokens_per_second
    return {
        "needed": size(outcome.needed_bytes),
        "fits": outcome.fits,
        "step": "n/a" if outcome.step_seconds is None else short_seconds(outcome.step_seconds),
        "rate": "n/a" if rate is None else f"{rate:,.0f}",
    }
