"""A budget that could not be kept."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["budget_counts_records", "budget_has_a_limit"]


@reads("efficiency.budget")
def budget_has_a_limit(settings: Settings) -> list[Contradiction]:
    """``budget: {}``."""
    budget = settings.recipe.efficiency.budget
    if budget is None or any(value is not None for value in (budget.usd, budget.hours, budget.kwh)):
        return []
    return [("efficiency.budget", "has no limit.", "Write usd, hours or kwh, or remove it.")]


@reads("efficiency.budget", "efficiency.record_steps")
def budget_counts_records(settings: Settings) -> list[Contradiction]:
    """What a run spends is counted from its records."""
    efficiency = settings.recipe.efficiency
    if efficiency.budget is None or efficiency.record_steps:
        return []
    message = "is set, but `efficiency.record_steps: false` records nothing that could be counted."
    return [("efficiency.budget", message, "Remove it, or the false.")]
