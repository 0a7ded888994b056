"""The room's door: a recipe and a tokenizer in, the data that a trainer takes out."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import datasets
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.data.cache import Entry, cache_folder, cache_key, load_entry, save_entry
from hf_efficient.data.examples import RawData, build_raw, open_sources
from hf_efficient.data.formats import kind_of, question_and_answer
from hf_efficient.data.prepare import build_collator, prepare
from hf_efficient.data.sources import Source
from hf_efficient.data.targets import targets_of
from hf_efficient.recipe.schema import Recipe

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SftData(Entry):
    """What a supervised fine-tuning run reads; TRL's ``collator`` makes batches (examples, tokens), padding-free (1,
    tokens)."""

    collator: DataCollatorForLanguageModeling
    cached: bool


@dataclass(frozen=True)
class PreferenceData:
    """Preference pairs as ``trl.DPOTrainer`` holds them after its own preparation.

    Attributes:
        train, eval: rows with ``prompt``, ``chosen``, ``rejected`` (strings, or lists of messages), and tokenised
            ``prompt_ids``, ``chosen_ids``, ``rejected_ids``, lists of int, not cut to ``max_length``.
        dropped, eval_dropped: pairs left out because the prompt alone fills ``max_length``.
    """

    train: datasets.Dataset
    eval: datasets.Dataset | None
    dropped: int
    eval_dropped: int
    small_sources: dict[str, int] | None
    largest_token_id: int


def build_sft_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> SftData:
    """Read, check, tokenise and pack the data of a recipe of ``method: sft``, or take all that from the cache. The
    first process of each machine builds, the others read its cache. A missing padding token is set. Raises
    ``DataError``: any fault of the data or of the tokenizer for them; names the source and the row."""
    collator = build_collator(tokenizer, args)
    entry, cached = _local_main_first(lambda: _load_or_build(recipe, tokenizer, args))
    return SftData(collator=collator, cached=cached, **vars(entry))


def build_preference_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: DPOConfig) -> PreferenceData:
    """Read, check, split, weigh and tokenise the pairs of a recipe of ``method: dpo``; raises as ``build_sft_data``."""
    from hf_efficient.data.preference import prepare_pairs  # loads DPOTrainer, which other runs do not need

    raw = read_raw(recipe, args, open_sources(recipe.data))
    train = prepare_pairs(raw.train, raw.kind, tokenizer, args, "train")
    evaluation = None if raw.eval is None else prepare_pairs(raw.eval, kind_of(raw.eval[0]), tokenizer, args, "eval")
    return PreferenceData(
        train=train.dataset,
        eval=None if evaluation is None else evaluation.dataset,
        dropped=train.dropped,
        eval_dropped=0 if evaluation is None else evaluation.dropped,
        small_sources=raw.small_sources,
        largest_token_id=max(one.largest_token_id for one in (train, evaluation) if one is not None),
    )


def _load_or_build(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> tuple[Entry, bool]:
    sources = open_sources(recipe.data)
    folder = cache_folder(recipe.data.cache_dir)
    key = cache_key(recipe, tokenizer, args, sources)
    entry = load_entry(folder, key)
    if entry is not None:
        return entry, True
    entry = _build(recipe, tokenizer, args, sources)
    save_entry(folder, key, entry)
    return entry, False


def _build(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: SFTConfig, sources: tuple[list[Source], list[Source]]
) -> Entry:
    raw = read_raw(recipe, args, sources)
    targets = targets_of(recipe, args, raw.kind)
    train, stats = prepare(raw.train, raw.kind, tokenizer, args, recipe.data.overlong, targets, "train")
    evaluation, eval_stats = None, None
    if raw.eval is not None:
        kind = kind_of(raw.eval[0])
        targets = targets_of(recipe, args, kind if targets.assistant else raw.kind)
        evaluation, eval_stats = prepare(raw.eval, kind, tokenizer, args, recipe.data.overlong, targets, "eval")
    return Entry(
        train=train,
        eval=evaluation,
        stats=replace(stats, small_sources=raw.small_sources),
        eval_stats=eval_stats,
        eval_examples=_for_generation(raw, recipe.evaluate.generate.examples, args.seed),
    )


def read_raw(recipe: Recipe, args: SFTConfig | DPOConfig, sources: tuple[list[Source], list[Source]]) -> RawData:
    """The examples of a recipe before they are tokenised."""
    if isinstance(args, DPOConfig):
        return build_raw(recipe.data, sources, args.seed, method="dpo")
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
