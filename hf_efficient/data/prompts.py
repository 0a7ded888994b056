"""Prompts that a model is to answer (``objective: grpo``), checked and tokenised before it is loaded, and what an
answer is worth: built-in rewards, and functions of the user's own, as TRL's ``GRPOTrainer`` calls them.

A reward takes ``completions`` (strings, or lists with the assistant's message) and the columns of their rows, and
returns a number for each.
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from trl import GRPOConfig

from hf_efficient.data.examples import RawData, build_raw
from hf_efficient.data.formats import TEMPLATE_FAULTS, kind_of
from hf_efficient.data.prepare import check_tokenizer, set_pad_token
from hf_efficient.data.prepared import recipe_sources
from hf_efficient.errors import DataError, SetupError, first_line
from hf_efficient.recipe.schema import Recipe, RewardSection

Reward = Callable[..., list[float]]

_COMPARING = ("exact_match", "number_match")
_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


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


def build_prompt_data(recipe: Recipe, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> PromptData:
    """``DataError``: any fault of the data or of their tokenizer, or no answer for a reward; names source and row."""
    raw = build_raw(recipe.data, recipe_sources(recipe), args.seed, objective=recipe.objective)
    return prompt_data(recipe, raw, tokenizer, args)


def prompt_data(recipe: Recipe, raw: RawData, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> PromptData:
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


def _check_enough(prompts: int, args: GRPOConfig) -> None:
    """TRL leaves out prompts that do not fill a generation, and would train nothing."""
    needed = int(args.generation_batch_size or 0) // int(args.num_generations or 1)
    if prompts < needed:
        raise DataError(
            f"data.train: there are {prompts} prompts, and {needed} are answered together, in "
            f"{args.generation_batch_size} completions (train.num_generations is {args.num_generations}). Add prompts, "
            "or write smaller batches."
        )


def prompt_ids(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> list[int]:
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
    except TEMPLATE_FAULTS as error:
        raise DataError(f"{row['where']}: the chat template refuses this prompt: {error}.") from error
    return list(rendered["input_ids"])


def _tokens(rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> Iterator[list[int]]:
    check_tokenizer(tokenizer, kind_of(rows[0]), args)
    for row in rows:
        text = row["prompt"] if isinstance(row["prompt"], str) else row["prompt"][-1]["content"]
        if not text.strip():
            raise DataError(f"{row['where']}: 'prompt' is empty, so there is nothing to answer. Leave the row out.")
        yield prompt_ids(row, tokenizer, args)


def last_number(text: str) -> float | None:
    """The last number in a text, without commas between its digits; what follows the last ``####``, where there is
    one, as in GSM8K's answers. None where there is none. Hand-worked: "It is 1,250." gives 1250.0."""
    found = _NUMBER.findall(text.rpartition("####")[2])
    return float(found[-1].replace(",", "")) if found else None


def exact_match(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the completion is the answer, white space aside."""
    pairs = zip(completions, answer, strict=True)
    return [float(_text(one).split() == expected.split()) for one, expected in pairs]


def number_match(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    pairs = zip(completions, answer, strict=True)
    return [float(last_number(_text(one)) == last_number(expected)) for one, expected in pairs]


def make_rewards(sections: Sequence[RewardSection]) -> list[Reward]:
    """By the names under which TRL logs them. ``SetupError``: a module or function of the user's that is not there."""
    return [_reward(one, index) for index, one in enumerate(sections)]


def check_answers(sections: Sequence[RewardSection], rows: datasets.Dataset) -> None:
    for name in [one.name for one in sections if one.name in _COMPARING]:
        for row in rows:
            if row["answer"] is None or not row["answer"].strip():
                raise DataError(
                    f"{row['where']}: 'answer' is missing, and the reward {name} compares with it. Add the column, "
                    "rename one (`columns: {answer: solution}`), or remove the reward."
                )
            if name == "number_match" and last_number(row["answer"]) is None:
                raise DataError(
                    f"{row['where']}: 'answer' holds no number, and the reward number_match compares numbers. "
                    "Correct the row, or write exact_match."
                )


def _reward(section: RewardSection, index: int) -> Reward:
    if section.function is not None:
        return _own(section.function, f"rewards.{index}.function")
    if section.name == "format":
        reward = _format(section.pattern or "")
        reward.__name__ = f"format_{index}" if index else "format"  # there may be several
        return reward
    if section.name == "length":
        return _length(section.tokens or 1)
    return exact_match if section.name == "exact_match" else number_match


def _format(pattern: str) -> Reward:
    wanted = re.compile(pattern, re.DOTALL)

    def matches(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(wanted.fullmatch(_text(one).strip()) is not None) for one in completions]

    return matches


def _length(most: int) -> Reward:
    """Hand-worked, of 100 tokens: 100 give 1, 150 give 0.5, 200 and more 0."""

    def length(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [min(1.0, max(0.0, 2 - len(ids) / most)) for ids in completion_ids]

    return length


def _own(name: str, key: str) -> Reward:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SetupError(
            f"{key}: {module} cannot be imported: {first_line(error)}. Install it, or name its folder in PYTHONPATH."
        ) from error
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise SetupError(f"{key}: {module} has no function {path}. Write module:function.")
    own: Reward = found
    return own


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
