"""What the figures of an isolation leave out, or rest on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from hf_efficient.isolate.variants.tokenisation import MOST_EXAMPLES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import IsolationSchedule, VariantOutcome

__all__ = ["remarks"]

_MUCH = 1.15
_SAME_BATCHES = ("quiet", "logged", "held_batches", "one_process", "forward", "forward_no_grad", "loader")


def remarks(recipe: Recipe, held: Mapping[str, VariantOutcome], schedule: IsolationSchedule) -> list[str]:
    """In sentences.

    Args:
        recipe: the user's.
        held: the variants by name.
        schedule: of the recipe.
    """
    found = []
    reports = recipe.train.get("report_to")
    if reports not in (None, "none", [], ["none"]):
        found.append(
            f"train.report_to was off, so that nobody is told of these runs: what {reports} takes is not in it"
        )
    if recipe.efficiency.plan:
        found.append("a run also plans once, before its first step")
    if schedule.processes > 1 and schedule.device == "cpu":
        found.append("processes on one CPU share its memory and caches: communication holds what that costs")
    tokenised = held.get("tokenisation")
    if tokenised is not None and any((run.examples or 0) >= MOST_EXAMPLES for run in tokenised.runs):
        found.append(f"tokenisation is of {MOST_EXAMPLES:,} examples, drawn from all")
    if (ratio := _drift(held["as_is"])) > _MUCH:
        found.append(
            f"the recipe as it is took {ratio:.2f} times as long in one round as in another: something else uses this "
            "machine, and spreads are wide; run it alone, or with more --steps"
        )
    other = [name for name in _SAME_BATCHES if name in held and _differs(held["as_is"], held[name])]
    if other:
        found.append(f"the batches of {', '.join(other)} were not those of the recipe as it is")
    return found


def _drift(base: VariantOutcome) -> float:
    """The slowest round over the fastest."""
    middles = [statistics.median(run.step_seconds) for run in base.runs if run.step_seconds]
    return max(middles) / min(middles) if middles else 1.0


def _differs(base: VariantOutcome, other: VariantOutcome) -> bool:
    """Whether another trained on other numbers of tokens."""
    if not base.runs or not other.runs:
        return False
    first, second = base.runs[0].step_tokens, other.runs[0].step_tokens
    return bool(first) and bool(second) and sum(first) != sum(second)
