"""The data of a recipe's run, where they are at hand: their rows, and the batches that they could make instead."""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from trl import DPOConfig, GRPOConfig, SFTConfig

from hf_efficient.data import stats
from hf_efficient.data.build import PreferenceData, SftData, build_preference_data, build_sft_data
from hf_efficient.data.examples import NotPreparedError, recipe_sources
from hf_efficient.data.objectives import PromptData, build_prompt_data, completions_of_each
from hf_efficient.data.sources import BUILTINS
from hf_efficient.errors import ModelError, SetupError
from hf_efficient.model.load import load_tokenizer
from hf_efficient.planning.arguments import process_kept, run_arguments
from hf_efficient.planning.batches import RunRows, RunShapes, batching_of, batchings, planned_rows
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_packed
from hf_efficient.records.plan import PlannedData


def rows_of(data: SftData | PreferenceData | PromptData, args: Any) -> RunRows:
    """Completions are taken to be as long as they may be."""
    if isinstance(data, PromptData):
        most, each = args.max_completion_length, completions_of_each(args)
        times = each * getattr(args, "num_iterations", 1)
        evaluated, asked = data.eval_lengths, getattr(args, "num_generations_eval", None) or each
        return RunRows(
            np.repeat(data.lengths + most, times), None if evaluated is None else np.repeat(evaluated + most, asked)
        )
    if isinstance(data, PreferenceData):
        pairs = (stats.answer_lengths(held, args.max_length) for held in (data.train, data.eval) if held is not None)
        return RunRows(*pairs)
    return RunRows(stats.lengths(data.train), None if data.eval is None else stats.lengths(data.eval))


def data_at_hand(recipe: Recipe) -> tuple[SFTConfig, SftData | PreferenceData | PromptData] | str:
    """The tokenised data, by the run's preparation and cache, or why they are not here; ``DataError``: not readable."""
    for key, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        for number, source in enumerate(sources):
            if source.path not in BUILTINS and not _is_here(source.path):
                return f"data.{key}.{number}.path: {source.path} is not on this machine"
    if recipe.data.pipeline is not None:
        try:
            recipe_sources(recipe)
        except NotPreparedError as error:
            return str(error).rstrip(".")
    try:
        tokenizer = load_tokenizer(recipe.model, recipe.train)
    except (ModelError, SetupError) as error:
        name = recipe.model.tokenizer or recipe.model.id
        is_broken = name.startswith("package:") or _is_here(name)
        return str(error) if is_broken else f"the tokenizer of {name} is not on this machine"
    with process_kept(), tempfile.TemporaryDirectory() as directory:
        args = run_arguments(recipe, directory)
        if OBJECTIVES[recipe.objective].generates:
            return args, build_prompt_data(recipe, tokenizer, cast(GRPOConfig, args))
        if OBJECTIVES[recipe.objective].is_of_preferences:
            return args, build_preference_data(recipe, tokenizer, cast(DPOConfig, args))
        return args, build_sft_data(recipe, tokenizer, args)


def _is_here(path: str) -> bool:
    """Whether something is there; what may not be looked at counts, so that reading it says why."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):
        return True


def planned_data(
    args: SFTConfig, data: SftData | PreferenceData | PromptData, shapes: RunShapes, processes: int
) -> PlannedData:
    evaluated = 0 if data.eval is None else len(data.eval)
    if not isinstance(data, SftData):
        rows = data.lengths if isinstance(data, PromptData) else rows_of(data, args).train
        return planned_rows(rows, evaluated, shapes)
    documents = stats.document_lengths(data.train)
    found = planned_rows(documents, evaluated, shapes)
    found = replace(found, examples=data.stats.examples, tokens=data.stats.tokens_total)
    if data.eval_stats is not None and data.eval_stats.packs is not None:
        found = replace(found, evaluation_examples=data.eval_stats.examples)
    if is_cut(args, data):
        return found
    how, packed = batching_of(args, processes), is_packed(args, "train")
    kinds = batchings(documents, how, packed=packed, max_length=args.max_length, seed=args.seed)
    return replace(found, batchings=kinds)


def is_cut(args: SFTConfig, data: SftData) -> bool:
    """Whether packs were made without regard to where an example ends, so that nobody knows how long each was."""
    return is_packed(args, "train") and "seq_lengths" not in data.train.column_names
