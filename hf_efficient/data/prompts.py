"""Prompts that a model is to answer (``objective: grpo``): checked and tokenised before the model is loaded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import datasets
import jinja2
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase

from hf_efficient.data.examples import RawData, build_raw, open_sources
from hf_efficient.data.formats import kind_of
from hf_efficient.data.prepare import check_tokenizer, set_pad_token
from hf_efficient.data.rewards import check_answers
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from trl import GRPOConfig


@dataclass(frozen=True)
class PromptData:
    """Rows of ``prompt`` (a string, or messages) and ``answer`` (a string or None). ``lengths``, ``eval_lengths``:
    tokens of each prompt, as the template renders it, shape (rows,)."""

    train: datasets.Dataset
    eval: datasets.Dataset | None
    lengths: npt.NDArray[np.int64]
    eval_lengths: npt.NDArray[np.int64] | None
    small_sources: dict[str, int] | None
    largest_token_id: int


def build_prompt_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: "GRPOConfig") -> PromptData:
    """Read, check, split and weigh. Raises ``DataError``: any fault of the data or of the tokenizer for them, or an
    answer that a reward needs and that is not there; names the source and the row."""
    raw = build_raw(recipe.data, open_sources(recipe.data), args.seed, objective=recipe.objective)
    return prompt_data(recipe, raw, tokenizer, args)


def prompt_data(recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: "GRPOConfig") -> PromptData:
    """The same of rows that were read."""
    held = [one for one in (raw.train, raw.eval) if one is not None]
    for rows in held:
        check_answers(recipe.rewards, rows)
    _check_enough(len(raw.train), args)
    set_pad_token(tokenizer, args)
    tokens = [list(_tokens(rows, tokenizer, args)) for rows in held]
    counts = [np.array([len(ids) for ids in one], dtype=np.int64) for one in tokens]
    plain = [rows.remove_columns("where") for rows in held]
    return PromptData(
        train=plain[0],
        eval=plain[1] if raw.eval is not None else None,
        lengths=counts[0],
        eval_lengths=counts[1] if raw.eval is not None else None,
        small_sources=raw.small_sources,
        largest_token_id=max(max(ids, default=-1) for one in tokens for ids in one),
    )


def _check_enough(prompts: int, args: "GRPOConfig") -> None:
    """TRL leaves out prompts that do not fill a generation, and would train nothing."""
    needed = int(args.generation_batch_size or 0) // int(args.num_generations or 1)
    if prompts < needed:
        raise DataError(
            f"data.train: there are {prompts} prompts, and {needed} are answered together, in "
            f"{args.generation_batch_size} completions (train.num_generations is {args.num_generations}). Add prompts, "
            "or write smaller batches."
        )


def prompt_ids(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, args: "GRPOConfig") -> list[int]:
    """The tokens of a row's prompt, as TRL's ``_tokenize_prompts`` (1.16) has them."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        ids: list[int] = tokenizer(prompt)["input_ids"]
        return ids
    settings: dict[str, Any] = dict(args.chat_template_kwargs or {})  # type: ignore[arg-type]
    try:
        rendered: Any = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **settings
        )
    except jinja2.TemplateError as error:
        raise DataError(f"{row['where']}: the chat template refuses this prompt: {error}.") from error
    return list(rendered["input_ids"])


def _tokens(rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: "GRPOConfig") -> Iterator[list[int]]:
    check_tokenizer(tokenizer, kind_of(rows[0]), args)
    for row in rows:
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        if not text.strip():
            raise DataError(f"{row['where']}: 'prompt' is empty, so there is nothing to answer. Leave the row out.")
        yield prompt_ids(row, tokenizer, args)
