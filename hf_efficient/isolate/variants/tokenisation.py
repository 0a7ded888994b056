"""Tokenisation alone: the recipe's sources through the tokenizer, the cache bypassed."""

from __future__ import annotations

from typing import Any

from hf_efficient.isolate.changes import ALONE
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["MOST_EXAMPLES", "TOKENISATION"]

MOST_EXAMPLES = 2000
"""Of a larger source a drawn part, which gives the same rate."""


def _changes(recipe: Recipe) -> dict[str, Any]:
    few = min(recipe.data.max_train_examples or MOST_EXAMPLES, MOST_EXAMPLES)
    return {
        **ALONE,
        "data.max_train_examples": few,
        "data.eval": [],
        "data.eval_fraction": None,
        "evaluate.metrics": [],
    }


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.tokenising import tokenisation_alone

    return tokenisation_alone(setup)


TOKENISATION = Variant("tokenisation", "tokenisation alone", _measure, _changes, one_process=True)
