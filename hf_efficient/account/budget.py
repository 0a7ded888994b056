"""The limits of a run, and whether one of them ended it."""

from __future__ import annotations

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.records import BudgetAccount

__all__ = ["budget_of"]


def budget_of(last: ProcessSpans) -> BudgetAccount | None:
    """The budget that a run's last process had; None where it had none."""
    limits = last.facts.get("budget")
    if limits is None:
        return None
    reached = (last.notes.get("budget") or [{}])[-1]
    return BudgetAccount(
        usd=limits.get("usd"),
        hours=limits.get("hours"),
        kwh=limits.get("kwh"),
        reached=reached.get("reached"),
        reached_at_step=reached.get("step"),
    )
