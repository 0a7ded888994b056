"""What goes beyond a plan for one accelerator: what to change, and the most that fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hf_efficient.data.build import PreferenceData
from hf_efficient.data.stats import document_lengths
from hf_efficient.facts.accelerators import accelerator
from hf_efficient.planning.advice import advise
from hf_efficient.planning.data_at_hand import data_at_hand
from hf_efficient.planning.largest import largest_that_fit
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.run_data import is_cut
from hf_efficient.planning.run_shapes import RunRows, rows_of
from hf_efficient.planning.trials import Trial, Trials, outcome_of
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan


def with_advice(recipe: Recipe, plan: Plan) -> Plan:
    """The plan, and the changes of the recipe, rehearsed and ranked, for its first accelerator.

    Raises:
        HfEfficientError: the model's configuration is no longer to be had.
    """
    config, trials, start = model_config(recipe.model), *_trials(recipe, plan)
    return replace(plan, advice=advise(recipe, config, trials, start))


def with_largest(recipe: Recipe, plan: Plan) -> Plan:
    """The plan, and the largest micro-batch and the longest rows that fit its first accelerator.

    Raises:
        HfEfficientError: the model's configuration is no longer to be had.
    """
    config, trials, start = model_config(recipe.model), *_trials(recipe, plan)
    return replace(plan, largest=largest_that_fit(recipe, config, plan, trials, start))


def cheapest_fix(plan: Plan) -> Mapping[str, Any] | None:
    """The first change of the plan's advice that makes the recipe fit; None where none does."""
    assert plan.advice is not None
    return next((change.overrides for change in plan.advice.changes if change.after.fits), None)


def _trials(recipe: Recipe, plan: Plan) -> tuple[Trials, Trial]:
    gpu = plan.gpus[0]
    documents = None if plan.data is None else _documents(recipe)
    trials = Trials(model_config(recipe.model), accelerator(gpu.name), documents)
    return trials, Trial(outcome_of(gpu), plan.memory, 0.0 if plan.data is None else plan.data.padding_share)


def _documents(recipe: Recipe) -> RunRows | None:
    """Those that the plan has read, from the cache of tokenised data; None where packs have cut them."""
    known = data_at_hand(recipe)
    if isinstance(known, str):
        return None
    if isinstance(known.data, PreferenceData):
        return rows_of(known.data, known.args)
    if is_cut(known.args, known.data):
        return None
    evaluation = None if known.data.eval is None else document_lengths(known.data.eval)
    return RunRows(document_lengths(known.data.train), evaluation)
