"""The recipe's data, where they lie on this machine: a plan reads them, and downloads nothing for it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hf_efficient.data.build import PreferenceData, SftData, build_preference_data, build_sft_data
from hf_efficient.data.sources import BUILTINS
from hf_efficient.errors import ModelError, SetupError
from hf_efficient.model.load import load_tokenizer
from hf_efficient.planning.arguments import run_arguments
from hf_efficient.planning.isolation import process_kept
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import DPOConfig, SFTConfig


@dataclass(frozen=True)
class DataAtHand:
    """Data and arguments of a run."""

    args: SFTConfig
    data: SftData | PreferenceData


def data_at_hand(recipe: Recipe) -> DataAtHand | str:
    """The tokenised data of a run, by its own preparation and cache; or why they are not at hand, in words.

    Args:
        recipe: the recipe.

    Raises:
        DataError: they are there and cannot be read, or are not what the recipe says.
        RecipeError: TRL or transformers refuse values of ``train:``.
    """
    for key, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        for number, source in enumerate(sources):
            if source.path not in BUILTINS and not _lies_here(source.path):
                return f"data.{key}.{number}.path: {source.path} is not on this machine"
    try:
        tokenizer = load_tokenizer(recipe.model, recipe.train)
    except (ModelError, SetupError):
        return f"the tokenizer of {recipe.model.tokenizer or recipe.model.id} is not on this machine"
    with process_kept(), tempfile.TemporaryDirectory() as directory:
        args = run_arguments(recipe, directory)
        if recipe.method == "dpo":
            return DataAtHand(args, build_preference_data(recipe, tokenizer, cast("DPOConfig", args)))
        return DataAtHand(args, build_sft_data(recipe, tokenizer, args))


def _lies_here(path: str) -> bool:
    """Whether something is there; what may not be looked at counts, so that reading it says why."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):
        return True
