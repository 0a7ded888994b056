"""The recipe's data made from their sources, timed."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

from hf_efficient.assembly.model import load_tokenizer
from hf_efficient.data.build import build_preference_data, build_sft_data
from hf_efficient.data.examples import build_raw, open_sources
from hf_efficient.isolate.variant import Setup
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["tokenisation_alone"]


def tokenisation_alone(setup: Setup) -> VariantMeasurement:
    """Read the sources once, then prepare them from the beginning with an empty cache.

    Raises:
        HfEfficientError: faults of the data or the tokenizer.
    """
    cache = Path(setup.recipe.output_dir) / "tokenized"
    recipe = change_recipe(setup.recipe, {"data.cache_dir": str(cache)})
    args: Any = training_arguments(recipe)
    tokenizer = load_tokenizer(recipe.model, recipe.train)
    began = time.perf_counter()
    build_raw(recipe.data, open_sources(recipe.data), args.seed, **_reading(recipe, args))
    read = time.perf_counter()
    if recipe.method == "dpo":
        pairs = build_preference_data(recipe, tokenizer, args)
        examples, tokens = len(pairs.train) + pairs.dropped, _pair_tokens(pairs.train)
    else:
        data = build_sft_data(recipe, tokenizer, args)
        examples, tokens = data.stats.examples, data.stats.tokens_total
    prepared = time.perf_counter()
    return dataclasses.replace(
        VariantMeasurement(),
        examples=examples,
        tokens=tokens,
        read_seconds=read - began,
        prepare_seconds=prepared - read,
    )


def _reading(recipe: Recipe, args: Any) -> dict[str, Any]:
    """As ``data/build.py`` reads them."""
    if recipe.method == "dpo":
        return {"method": "dpo"}
    return {"completion_only": args.completion_only_loss is True, "text_column": args.dataset_text_field}


def _pair_tokens(pairs: Any) -> int:
    return sum(len(row[name]) for row in pairs for name in ("prompt_ids", "chosen_ids", "rejected_ids"))
