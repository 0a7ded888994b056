"""What a plan takes for granted of the run's evaluations and saves."""

from __future__ import annotations

from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.terms import Terms
from hf_efficient.recipe.schema import Recipe
from hf_efficient.text import size


def pause_remarks(recipe: Recipe, demand: Demand, terms: Terms, *, read: bool) -> list[str]:
    """Of a run whose steps are known; without them there are no hours to hold anything.

    Args:
        recipe: the recipe.
        demand: of the run.
        terms: of its money.
        read: whether the plan has read the data.
    """
    if demand.steps is None:
        return []
    saves = [] if terms.market == "spot" else _of_saves(recipe, terms)
    return [*_of_evaluations(recipe, demand, read=read), *saves]


def _of_evaluations(recipe: Recipe, demand: Demand, *, read: bool) -> list[str]:
    if demand.evaluation_batches is None:
        return [
            "hours and money hold no evaluations: how many there are, and of how many rows, is not known without the "
            "data; train.eval_strategy=steps and data.max_eval_examples=N tell it"
        ]
    if read or not demand.evaluation_batches:
        return []
    return [f"every evaluation has data.max_eval_examples rows, {recipe.data.max_eval_examples:,}, of as many tokens"]


def _of_saves(recipe: Recipe, terms: Terms) -> list[str]:
    if terms.saves is None:
        return [
            "hours and money hold no saves of checkpoints: how many there are is not known without the data; "
            "train.save_strategy=steps tells it"
        ]
    if terms.saves == 0:
        return []
    most = "up to " if recipe.train.get("save_strategy") == "best" else ""
    many = f"{most}{terms.saves:,} save{'' if terms.saves == 1 else 's'} of {size(terms.checkpoint_bytes)}"
    spot = terms.spot
    if spot.write_of is None:
        return [f"hours and money hold {many}, written at your {spot.write_mb_per_second:g} MB/s"]
    speed = f"{spot.write_mb_per_second:g} MB/s ({spot.write_of})"
    return [f"hours and money hold {many}, written at {speed}: efficiency.spot.write_mb_per_second changes that"]
