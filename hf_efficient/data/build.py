"""The room's door: a recipe and a tokenizer in, the data that a trainer takes out."""

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import datasets
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.data.cache import Entry, cache_folder, cache_key, kept_on_disk, load_entry, save_entry
from hf_efficient.data.examples import RawData, build_raw, recipe_sources
from hf_efficient.data.formats import kind_of, question_and_answer
from hf_efficient.data.prepare import Prepared, build_collator, prepare
from hf_efficient.data.sources import Source
from hf_efficient.data.stats import LeftOut
from hf_efficient.data.targets import targets_of
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SftData(Entry):
    """TRL's ``collator`` makes batches (examples, tokens), padding-free (1, tokens)."""

    collator: DataCollatorForLanguageModeling
    cached: bool


@dataclass(frozen=True)
class PreferenceData:
    """Preference pairs, or labelled answers, as TRL's trainer holds them after its own preparation. ``train``,
    ``eval``: rows of texts and of token ids (``preference.py`` names the columns), not cut to ``max_length``. ``good``:
    answers of ``train`` with the label true; None of pairs. ``remark``: on the weights of both labels."""

    train: datasets.Dataset
    eval: datasets.Dataset | None
    left_out: tuple[LeftOut, ...]
    small_sources: dict[str, int] | None
    largest_token_id: int
    good: int | None = None
    remark: str = ""

    @property
    def dropped(self) -> int:
        return sum(one.rows for one in self.left_out)


def build_sft_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> SftData:
    """Read, check, tokenise and pack the data of a recipe of ``objective: sft``, or take all that from the cache. The
    first process of each machine builds, the others read its cache. A missing padding token is set. Raises
    ``DataError``: any fault of the data or of the tokenizer for them; names the source and the row."""
    collator = build_collator(tokenizer, args)
    entry, cached = _local_main_first(lambda: _load_or_build(recipe, tokenizer, args))
    return SftData(collator=collator, cached=cached, **vars(entry))


def build_preference_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: DPOConfig) -> PreferenceData:
    """Read, check, split, weigh and tokenise the rows of a recipe of preferences; raises as ``build_sft_data``."""
    from hf_efficient.data import objectives  # loads trainers, which other runs do not need

    raw = read_raw(recipe, args, recipe_sources(recipe))
    sides = objectives.prepare_preferences(raw, tokenizer, args, recipe.objective)
    held = [one.dataset.remove_columns("where") for one in sides]
    if getattr(args, "precompute_ref_log_probs", False):
        settings = [recipe.objective, args.max_length, getattr(args, "truncation_mode", None)]
        folder = cache_folder(recipe.data.cache_dir)
        held = [_local_main_first(functools.partial(kept_on_disk, one, folder, settings)) for one in held]
    good = sum(held[0]["label"]) if "label" in held[0].column_names else None
    return PreferenceData(
        train=held[0],
        eval=held[1] if len(held) > 1 else None,
        left_out=sides[0].left_out,
        small_sources=raw.small_sources,
        largest_token_id=max(one.largest_token_id for one in sides),
        good=good,
        remark="" if good is None else objectives.balance_remark(good, len(held[0]) - good, args),
    )


def _load_or_build(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> tuple[Entry, bool]:
    sources = recipe_sources(recipe)
    folder = cache_folder(recipe.data.cache_dir)
    key = cache_key(recipe, tokenizer, args, sources)
    entry = load_entry(folder, key)
    if entry is not None:
        return entry, True
    raw = read_raw(recipe, args, sources)
    train, evaluation = prepare_both(recipe, raw, tokenizer, args)
    entry = Entry(
        train=train.dataset,
        eval=None if evaluation is None else evaluation.dataset,
        stats=replace(train.stats, small_sources=raw.small_sources),
        eval_stats=None if evaluation is None else evaluation.stats,
        eval_examples=_for_generation(raw, recipe.evaluate.generate.examples, args.seed),
    )
    save_entry(folder, key, entry)
    return entry, False


def prepare_both(
    recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: SFTConfig
) -> tuple[Prepared, Prepared | None]:
    """The training data and, where there are any, the evaluation data; raises as ``prepare``."""
    overlong, targets = recipe.data.overlong, targets_of(recipe, args, raw.kind)
    train = prepare(raw.train, raw.kind, tokenizer, args, overlong, targets, "train")
    if raw.eval is None:
        return train, None
    kind = kind_of(raw.eval[0])
    targets = targets_of(recipe, args, kind if targets.assistant else raw.kind)
    return train, prepare(raw.eval, kind, tokenizer, args, overlong, targets, "eval")


def read_raw(recipe: Recipe, args: SFTConfig | DPOConfig, sources: tuple[list[Source], list[Source]]) -> RawData:
    if not OBJECTIVES[recipe.objective].imitates:
        return build_raw(recipe.data, sources, args.seed, objective=recipe.objective)
    assert isinstance(args, SFTConfig)
    only = args.completion_only_loss is True
    return build_raw(recipe.data, sources, args.seed, completion_only=only, text_column=args.dataset_text_field)


def _for_generation(raw: RawData, count: int, seed: int) -> list[dict[str, Any]]:
    if raw.eval is None:
        return []
    drawn = random.Random(f"hf_efficient:{seed}:generate").sample(range(len(raw.eval)), min(count, len(raw.eval)))
    pairs = (question_and_answer(raw.eval[index]) for index in sorted(drawn))
    return [pair for pair in pairs if pair is not None]


def _local_main_first(work: Callable[[], _Result]) -> _Result:
    """Run the work in the first process of each machine, then in the others, after an error too."""
    state = PartialState()
    if not state.is_local_main_process:
        state.wait_for_everyone()
    try:
        return work()
    finally:
        if state.is_local_main_process:
            state.wait_for_everyone()
