"""Rows of the other objectives to token ids, before the model is loaded: preference pairs and labelled answers by the
preparation of TRL's trainers; prompts that a model is to answer, and what an answer is worth (``grpo``)."""

import copy
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, GRPOConfig

from hf_efficient.data.examples import RawData, build_raw, recipe_sources
from hf_efficient.data.formats import TEMPLATE_FAULTS, kind_of
from hf_efficient.data.prepare import check_tokenizer, progress_bars, refused_chat, set_pad_token
from hf_efficient.data.stats import LeftOut, answer_columns, answer_lengths, largest_token_id, lengths
from hf_efficient.errors import DataError, SetupError
from hf_efficient.facts.environment import replaced
from hf_efficient.profilers.instrument import imported
from hf_efficient.recipe.objectives import OBJECTIVES, ObjectiveName
from hf_efficient.recipe.schema import Recipe, RewardSection
from hf_efficient.recipe.train_fields import trl_class


@dataclass(frozen=True)
class PreparedPreferences:
    dataset: datasets.Dataset
    left_out: tuple[LeftOut, ...]
    largest_token_id: int


def prepare_preferences(
    raw: RawData, tokenizer: PreTrainedTokenizerBase, args: DPOConfig, objective: ObjectiveName
) -> list[PreparedPreferences]:
    """The training data and, where there are any, the evaluation data: the tokenizer and the rows checked, tokenised,
    without what teaches nothing. Raises ``DataError``: the tokenizer lacks what the data need, its template refuses a
    chat, no row is left, or all have one label."""
    sides = {"train": raw.train, "eval": raw.eval}
    return [_prepared(rows, tokenizer, args, name, objective) for name, rows in sides.items() if rows is not None]


def _prepared(
    rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: DPOConfig, name: str, objective: ObjectiveName
) -> PreparedPreferences:
    check_tokenizer(tokenizer, kind_of(rows[0]), args)
    set_pad_token(tokenizer, args)
    if objective == "kto":
        rows = _labelled(rows)
    usable, left_out = _usable(rows, name)
    if objective == "kto" and name == "train":
        _check_labels(usable)
        usable = usable.shuffle(seed=args.seed)  # KTO trains on its rows in their order
    try:
        whole = _tokenised(usable, tokenizer, args, name, objective)
    except TEMPLATE_FAULTS as error:
        raise refused_chat(usable, tokenizer, None, error) from error
    fitting, long = _fitting(whole, args, name, objective)
    if objective == "kto" and args.loss_type != "apo_zero_unpaired":
        fitting = _with_other_answers(fitting, args)
    columns = [*(["prompt_ids"] if "prompt_ids" in fitting.column_names else []), *answer_columns(fitting)]
    return PreparedPreferences(fitting, (*left_out, *long), largest_token_id(fitting, columns))


def _labelled(rows: datasets.Dataset) -> datasets.Dataset:
    if "label" in rows.column_names:
        return rows

    def both(held: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        pairs = zip(held["chosen"], held["rejected"], strict=True)
        twice = {column: [one for one in held[column] for _ in range(2)] for column in ("prompt", "where")}
        answers = [answer for pair in pairs for answer in pair]
        return {**twice, "completion": answers, "label": [True, False] * (len(answers) // 2)}

    with progress_bars(len(rows)):
        return rows.map(both, batched=True, remove_columns=["chosen", "rejected"])


def _usable(rows: datasets.Dataset, name: str) -> tuple[datasets.Dataset, tuple[LeftOut, ...]]:
    faults: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        fault = _fault(row)
        if fault:
            faults.setdefault(fault, []).append(index)
    if not faults:
        return rows, ()
    where = rows["where"]
    left_out = tuple(LeftOut(why, len(found), where[found[0]]) for why, found in faults.items())
    wrong = {index for found in faults.values() for index in found}
    if len(wrong) == len(rows):
        raise DataError(
            f"{left_out[0].first}: {left_out[0].why}, and no {name} row is left to train on. Correct the data."
        )
    return rows.select([index for index in range(len(rows)) if index not in wrong]), left_out


def _fault(row: Mapping[str, Any]) -> str:
    answers = [row[column] for column in ("chosen", "rejected", "completion") if column in row]
    # The last turn of a chat is the answer that is compared.
    if any(not (answer if isinstance(answer, str) else answer[-1]["content"]).strip() for answer in answers):
        return "an answer is empty"
    return "both answers are the same" if len(answers) == 2 and answers[0] == answers[1] else ""


def _check_labels(rows: datasets.Dataset) -> None:
    labels = rows["label"]
    good = sum(labels)
    if good in (0, len(labels)):
        have, lack = ("true", "false") if good else ("false", "true")
        fault = f"data.train: all {len(labels)} answers have the label {have}, and KTO learns from the difference."
        instead = ", or write `objective: sft`" if good else ""
        raise DataError(f"{fault} Add answers with the label {lack}{instead}.")


def _tokenised(
    rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: DPOConfig, name: str, objective: ObjectiveName
) -> datasets.Dataset:
    """By the trainer's own methods, on one without a model that has what they read. Whole rows, where it can."""
    trainer_class = trl_class(OBJECTIVES[objective].trainer)
    trainer = object.__new__(trainer_class)
    uncut = copy.copy(args)
    uncut.max_length = None  # the trainer would leave rows out uncounted
    held: dict[str, Any] = {"_tokenizer": tokenizer, "calculate_KL": False}
    held |= {"processing_class": tokenizer, "is_encoder_decoder": False, "max_length": args.max_length or sys.maxsize}
    vars(trainer).update(held)
    module = sys.modules[trainer_class.__module__]
    # Every process prepares for itself, so none waits for another.
    with replaced(module, "global_then_local_main_first", nullcontext), progress_bars(len(rows)):
        if hasattr(trainer_class, "_prepare_dataset"):
            asked = name if objective != "kto" else f"{name}ing"  # TRL would advise on weights by the labels of `train`
            return trainer._prepare_dataset(rows, tokenizer, uncut, asked)
        settings = {"fn_kwargs": {"processing_class": tokenizer}, "num_proc": args.dataset_num_proc}
        return rows.map(module.maybe_apply_chat_template, **settings).map(
            trainer.tokenize_row, num_proc=args.dataset_num_proc
        )


def _fitting(
    whole: datasets.Dataset, args: DPOConfig, name: str, objective: ObjectiveName
) -> tuple[datasets.Dataset, tuple[LeftOut, ...]]:
    """Without the rows that TRL leaves out, or that it would cut until no answer is left."""
    if args.max_length is None or getattr(args, "truncation_mode", "keep_start") != "keep_start":
        return whole, ()
    if objective == "reward":
        needed, why = answer_lengths(whole, None).max(axis=1) - 1, "an answer with its prompt is longer than"
    else:
        column = "prompt_ids" if "prompt_ids" in whole.column_names else "prompt_input_ids"
        needed, why = lengths(whole, column), "the prompt alone fills"
    long = needed >= args.max_length
    if not long.any():
        return whole, ()
    if long.all():
        raise DataError(
            f"train.max_length: {args.max_length} is too small: {why} it in all {len(whole)} {name} rows (the shortest "
            f"has {needed.min() + (objective == 'reward')} tokens)."
        )
    first = str(whole[int(np.argmax(long))]["where"])
    left_out = LeftOut(f"{why} train.max_length {args.max_length}", int(long.sum()), first)
    return whole.select(np.flatnonzero(~long)), (left_out,)


def _with_other_answers(rows: datasets.Dataset, args: DPOConfig) -> datasets.Dataset:
    """Each prompt with the answer before it in its micro-batch, as ``KTOTrainer._prepare_dataset`` (TRL 1.16)."""

    def turned(held: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        return {"KL_completion_ids": held["completion_ids"][-1:] + held["completion_ids"][:-1]}

    with progress_bars(len(rows)):
        return rows.map(turned, batched=True, batch_size=args.per_device_train_batch_size)


def balance_remark(good: int, bad: int, args: Any) -> str:
    """What to write where the labels weigh too differently: good over bad from 1 to 4/3 (KTO, equation 8)."""
    weighs = args.desirable_weight * good / (args.undesirable_weight * max(bad, 1))
    if 0.95 <= weighs <= 4 / 3 or not good or not bad:
        return ""
    name = "undesirable_weight" if weighs > 1 else "desirable_weight"
    weight = getattr(args, name) * (weighs / 1.15 if weighs > 1 else 1.15 / weighs)
    what = f"good answers weigh {weighs:.2g} times the bad ones, and KTO asks for 1 to 1.33"
    return f"{what}: write `train.{name}: {weight:.2g}`"


def shown_answers(row: Mapping[str, Any], objective: ObjectiveName) -> Iterator[tuple[str, dict[str, Any]]]:
    """By name, as ``input_ids`` and ``labels``; a reward model reads its score at the last token."""
    for column in ("chosen", "rejected", "completion"):
        ids = row.get(f"{column}_ids", row.get(f"{column}_input_ids"))
        if ids is None:
            continue
        prompt = list(row.get("prompt_ids", ()))
        labels = row.get(f"{column}_labels") or [-100] * len(prompt) + list(ids)
        if objective == "reward":
            labels = [-100] * (len(ids) - 1) + list(ids[-1:])
        part = ("good answer" if row["label"] else "bad answer") if column == "completion" else column
        yield part, {"input_ids": prompt + list(ids), "labels": labels, "where": row["where"]}


def target_tokens(rows: datasets.Dataset, cut: npt.NDArray[np.int64], objective: ObjectiveName) -> int:
    """Tokens that the loss reads, of answers cut to these lengths, shape (rows, answers)."""
    if objective == "reward":
        return int(cut.size)
    prompts = lengths(rows, "prompt_ids" if "prompt_ids" in rows.column_names else "prompt_input_ids")
    return int(np.maximum(cut - np.maximum(prompts, 1)[:, None], 0).sum())


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


def completions_of_each(args: Any) -> int:
    """How often a prompt is answered: once, or by a group of completions that are compared."""
    return int(getattr(args, "num_generations", None) or 1)


def _check_enough(prompts: int, args: GRPOConfig) -> None:
    """TRL leaves out prompts that do not fill a generation, and would train nothing."""
    completions = getattr(args, "generation_batch_size", None)  # else those of a step
    completions = completions or args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    needed, times = completions // completions_of_each(args), completions_of_each(args)
    if prompts < needed:
        several = f", in {completions} completions (train.num_generations is {times})" if times > 1 else ""
        raise DataError(
            f"data.train: there are {prompts} prompts, and {needed} are answered together{several}. Add prompts, or "
            "write smaller batches."
        )


def prompt_ids(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, args: GRPOConfig) -> list[int]:
    """The tokens of a row's prompt, as TRL's ``_tokenize_prompts`` (1.16) has them."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
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
        key = f"rewards.{index}.function"
        found: Any = imported(key, section.function)
        if not callable(found):
            raise SetupError(f"{key}: {section.function} is no function. Write module:function.")
        return found
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


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
