"""Preference pairs to token ids, by the preparation of TRL's DPOTrainer, before the model is loaded."""

import copy
from contextlib import nullcontext
from typing import Literal, NamedTuple

import datasets
import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, DPOTrainer
from trl.trainer import dpo_trainer

from hf_efficient.data.formats import Kind
from hf_efficient.data.prepare import check_tokenizer, progress_bars, refused_chat, set_pad_token
from hf_efficient.data.stats import largest_token_id, lengths
from hf_efficient.errors import DataError
from hf_efficient.facts.libraries import replaced


class PreparedPairs(NamedTuple):
    """Rows as DPOTrainer holds them; ``dropped`` counts pairs left out because the prompt alone fills max_length."""

    dataset: datasets.Dataset
    dropped: int
    largest_token_id: int


class _Preparation(DPOTrainer):
    """DPOTrainer's data preparation without a trainer: only what ``_prepare_dataset`` reads is set."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def run(self, dataset: datasets.Dataset, args: DPOConfig, name: str) -> datasets.Dataset:
        # Every process prepares for itself, so none waits for another.
        with replaced(dpo_trainer, "global_then_local_main_first", nullcontext), progress_bars(len(dataset)):
            return self._prepare_dataset(dataset, self._tokenizer, args, name)


def prepare_pairs(
    pairs: datasets.Dataset,
    kind: Kind,
    tokenizer: PreTrainedTokenizerBase,
    args: DPOConfig,
    name: Literal["train", "eval"],
) -> PreparedPairs:
    """Check the tokenizer, tokenise canonical rows with ``where``, and leave out what DPOTrainer would. Raises
    ``DataError``: the tokenizer lacks what the data need, its template refuses a chat, or no pair is left."""
    check_tokenizer(tokenizer, kind, args)
    set_pad_token(tokenizer, args)
    uncut = copy.copy(args)
    uncut.max_length = None  # the trainer would leave pairs out uncounted
    try:
        whole = _Preparation(tokenizer).run(pairs, uncut, name)
    except jinja2.TemplateError as error:
        raise refused_chat(pairs, tokenizer, None, error) from error
    fitting = _fitting(whole.remove_columns("where"), args, name)
    largest = largest_token_id(fitting, ("prompt_ids", "chosen_ids", "rejected_ids"))
    return PreparedPairs(fitting, len(whole) - len(fitting), largest)


def _fitting(whole: datasets.Dataset, args: DPOConfig, name: str) -> datasets.Dataset:
    if args.max_length is None or args.truncation_mode != "keep_start":
        return whole
    prompts = lengths(whole, "prompt_ids")
    if prompts.min() >= args.max_length:
        raise DataError(
            f"train.max_length: {args.max_length} is too small: the prompt alone fills it in all {len(whole)} {name} "
            f"pairs (the shortest has {prompts.min()} tokens)."
        )
    return whole.select(np.flatnonzero(prompts < args.max_length))
