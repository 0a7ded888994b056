"""Preference pairs and labelled answers to token ids, by the preparation of TRL's trainers, before the model is loaded.

TRL's columns for an answer: DPO and KTO have ``prompt_ids`` beside ``chosen_ids`` and ``rejected_ids``, or
``completion_ids``; a reward model has the two with the prompt in them; ORPO and CPO ``chosen_input_ids`` with labels.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig

from hf_efficient.data.examples import RawData
from hf_efficient.data.formats import TEMPLATE_FAULTS, kind_of
from hf_efficient.data.prepare import check_tokenizer, progress_bars, refused_chat, set_pad_token
from hf_efficient.data.stats import LeftOut, answer_columns, answer_lengths, largest_token_id, lengths
from hf_efficient.errors import DataError
from hf_efficient.facts.libraries import replaced
from hf_efficient.recipe.objectives import OBJECTIVES, ObjectiveName
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
            prepared: datasets.Dataset = trainer._prepare_dataset(rows, tokenizer, uncut, asked)
            return prepared
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
