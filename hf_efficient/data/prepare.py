"""Canonical examples to token ids and labels, by TRL's own preparation; and what that needs of a tokenizer.

SFTTrainer's preparation, which needs no model, is called twice: to tokenise without packing and truncation, so that the
policy for overlong examples sees their full length; then with the recipe's settings. The rows are SFTTrainer's.
"""

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import datasets
import jinja2
import numpy as np
from transformers import PreTrainedTokenizerBase, TrainingArguments
from trl import SFTConfig, SFTTrainer
from trl.trainer import sft_trainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.data.formats import CHAT_KINDS, TEMPLATE_FAULTS, Kind, is_empty
from hf_efficient.data.stats import DataStats, largest_token_id, lengths, target_counts
from hf_efficient.data.targets import Targets, marked_template, tokenise_by_beginnings
from hf_efficient.errors import DataError
from hf_efficient.facts.environment import replaced
from hf_efficient.recipe.train_fields import is_packed, is_padding_free
from hf_efficient.text import counted

QUIET_UP_TO = 20_000  # rows; with more than that the progress bars of `datasets` are shown

_MARKER = re.compile(r"<\|[^|<>\s]+\|>|<end_of_turn>")
_QUESTION, _ANSWER = "asked-by-the-user", "answered-by-the-assistant"


@contextmanager
def progress_bars(rows: int) -> Iterator[None]:
    """Within, the bars of `datasets` are off for at most ``QUIET_UP_TO`` rows; afterwards as they were."""
    silenced = rows <= QUIET_UP_TO and not datasets.are_progress_bars_disabled()
    if silenced:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if silenced:
            datasets.enable_progress_bars()


def _by_trl(
    rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: SFTConfig, packing: bool, name: str, **more: Any
) -> datasets.Dataset:
    """SFTTrainer's data preparation without a trainer: only what ``_prepare_dataset`` reads is set."""
    trainer: Any = object.__new__(SFTTrainer)
    settings = {"_tokenizer": tokenizer, "_is_vlm": False, "completion_only_loss": False, "chat_template": None}
    vars(trainer).update({**settings, **more})
    # TRL lets one process after the other through with barriers; we decide that for the whole build, and a barrier in
    # here would wait for processes that never come.
    with replaced(sft_trainer, "global_then_local_main_first", nullcontext):
        return cast("datasets.Dataset", trainer._prepare_dataset(rows, tokenizer, args, packing, None, name))


def build_collator(tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> DataCollatorForLanguageModeling:
    """TRL's collator with SFTTrainer's settings; sets and raises as :func:`set_pad_token`."""
    return DataCollatorForLanguageModeling(
        pad_token_id=set_pad_token(tokenizer, args),
        padding_free=is_padding_free(args),
        pad_to_multiple_of=cast("int | None", args.pad_to_multiple_of),  # "auto" is resolved when args are made
    )


class Prepared(NamedTuple):
    """Rows with ``input_ids`` and ``labels``, and ``seq_lengths`` where packs keep their examples apart; ``whole``: as
    they were tokenised, nothing cut, nothing moved, with ``where``."""

    dataset: datasets.Dataset
    stats: DataStats
    whole: datasets.Dataset


def prepare(
    examples: datasets.Dataset,
    kind: Kind,
    tokenizer: PreTrainedTokenizerBase,
    args: SFTConfig,
    overlong: Literal["truncate", "drop", "error"],
    targets: Targets,
    name: Literal["train", "eval"],
) -> Prepared:
    """Tokenise canonical ``examples`` with ``where``, apply the overlong policy, truncate, shuffle and pack. Raises
    ``DataError``: the tokenizer lacks what the data need, an example is too long and ``overlong`` is ``error``, all
    examples are empty, or no target token is left."""
    whole = tokenise(examples, kind, tokenizer, args, targets, name)
    packing = is_packed(args, name)
    with progress_bars(len(whole)):
        fitting = _apply_overlong(whole, args.max_length, overlong, name)
        final = _finish(fitting, tokenizer, args, packing, name)
    stats = replace(_statistics(whole, fitting, final, args, packing), empty=sum(is_empty(row) for row in examples))
    _check_something_to_learn(stats, args, name)
    return Prepared(final, stats, whole)


def tokenise(
    examples: datasets.Dataset,
    kind: Kind,
    tokenizer: PreTrainedTokenizerBase,
    args: SFTConfig,
    targets: Targets,
    name: Literal["train", "eval"],
) -> datasets.Dataset:
    check_tokenizer(tokenizer, kind, args)
    if args.max_length is not None and args.max_length < 2:
        raise DataError(f"train.max_length: {args.max_length} is too small: predicting a token takes at least 2.")
    if all(is_empty(row) for row in examples):
        raise DataError(
            f"Every one of {counted(len(examples), f'{name} example')} is empty, so there is nothing to learn; the "
            f"first is {examples[0]['where']}. An example's text, completion or last answer must not be blank."
        )
    template = _marked_template(examples, tokenizer, args, kind) if targets.assistant else None
    with progress_bars(len(examples)):
        try:
            if targets.assistant and template is None:
                return tokenise_by_beginnings(examples, tokenizer, targets.completion, args.dataset_num_proc)
            changes = {"assistant_only_loss": targets.assistant, "max_length": None, "shuffle_dataset": False}
            by_marks = _changed(args, dataset_text_field="text", **changes)
            only = {"completion_only_loss": targets.completion, "chat_template": template}
            tokenised = _by_trl(examples, tokenizer, by_marks, False, name, **only)
        except TEMPLATE_FAULTS as error:
            raise refused_chat(examples, tokenizer, template, error) from error
        except RuntimeError as error:
            if "assistant_only_loss" not in str(error):
                raise
            why = "has no assistant token under the chat template's {% generation %} markers"
            remedy = "Correct the template, or write `data.targets: last` or `all`."
            raise DataError(f"At least one of the {name} examples {why}. {remedy}") from error
    return tokenised.select_columns(["input_ids", "labels", "where"])


def _apply_overlong(whole: datasets.Dataset, max_length: int | None, overlong: str, name: str) -> datasets.Dataset:
    if max_length is None or overlong == "truncate":
        return whole
    sizes = lengths(whole)
    too_long = np.flatnonzero(sizes > max_length)
    if overlong == "error" and len(too_long):
        first = int(too_long[0])
        raise DataError(
            f"{whole[first]['where']}: {sizes[first]} tokens, more than train.max_length ({max_length}); "
            f"{len(too_long)} of {len(whole)} {name} examples are. Raise train.max_length, or set data.overlong to "
            "truncate or drop."
        )
    if len(too_long) == len(whole):
        raise DataError(
            f"data.overlong: drop leaves no {name} example: all {len(whole)} are longer than train.max_length "
            f"({max_length}), the shortest has {sizes.min()} tokens."
        )
    return whole.select(np.flatnonzero(sizes <= max_length))


def _finish(
    fitting: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: SFTConfig, packing: bool, name: str
) -> datasets.Dataset:
    """TRL's second half: it skips what is done. It cuts row by row, so it is not asked to in vain."""
    columns = fitting.select_columns(["input_ids", "labels"])
    if args.max_length is not None and not packing:
        nothing_to_cut = lengths(columns).max() <= args.max_length and target_counts(columns).min() > 0
        args = _changed(args, max_length=None) if nothing_to_cut else args
    return _by_trl(columns, tokenizer, args, packing, name)


def _statistics(
    whole: datasets.Dataset, fitting: datasets.Dataset, final: datasets.Dataset, args: SFTConfig, packing: bool
) -> DataStats:
    sizes, limit, tokens = lengths(fitting), args.max_length, lengths(final)
    cuts = limit is not None and not (packing and args.packing_strategy != "bfd")
    # What is not padding-free runs on from document to document: the model sees each pack as one.
    apart = is_padding_free(args) or "seq_lengths" not in final.column_names
    targets = target_counts(final if apart else final.remove_columns("seq_lengths"))
    one_by_one = packing and args.packing_strategy == "bfd"  # each document of the packs is an example, cut
    learnt = target_counts(final, by_document=True) if one_by_one else target_counts(fitting) if packing else targets
    return DataStats(
        examples=len(fitting) if packing else len(final),
        dropped_overlong=len(whole) - len(fitting),
        truncated=int((sizes > limit).sum()) if cuts and limit else 0,
        dropped_masked=0 if packing else len(fitting) - len(final),
        masked=int((learnt == 0).sum()),
        tokens_total=int(tokens.sum()),
        target_tokens=int(targets.sum()),
        longest=int(lengths(whole).max()),
        packs=len(final) if packing else None,
        fill_rate=float(tokens.sum() / (len(final) * limit)) if packing and limit else None,
        largest_token_id=largest_token_id(final),
    )


def _check_something_to_learn(stats: DataStats, args: SFTConfig, name: str) -> None:
    if stats.target_tokens:
        return
    count = stats.examples + stats.dropped_masked
    if args.max_length is not None and stats.truncated:
        raise DataError(
            f"train.max_length: {args.max_length} is too small: no target token is left in any of the {count} "
            f"{name} examples (the longest has {stats.longest} tokens)."
        )
    raise DataError(
        f"All labels of {counted(count, f'{name} example')} are masked, so there is nothing to learn. Look at "
        "data.targets and the chat template."
    )


def _changed(args: SFTConfig, **changes: Any) -> SFTConfig:
    changed = copy.copy(args)
    vars(changed).update(changes)
    return changed


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, kind: Kind, args: TrainingArguments) -> None:
    """``DataError``: chats without a template that prints the answers, strings without an end-of-sequence token."""
    other = "Name a tokenizer that has one in model.tokenizer"
    if kind in CHAT_KINDS and (fault := _template_fault(tokenizer)):
        own = "Set train.chat_template_path to a .jinja file or to a model whose template to take"
        remedy = f"{own if hasattr(args, 'chat_template_path') else other}, or use plain text."
        raise DataError(f"The tokenizer {_name(tokenizer)} {fault}. {remedy}")
    if kind not in CHAT_KINDS and tokenizer.eos_token is None:
        remedy = "Set train.eos_token to a token of its vocabulary" if hasattr(args, "eos_token") else other
        fault = "has no end-of-sequence token, which ends every text"
        raise DataError(f"The tokenizer {_name(tokenizer)} {fault}. {remedy}.")


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return tokenizer.name_or_path or "(unnamed)"


def _template_fault(tokenizer: PreTrainedTokenizerBase) -> str:
    if not tokenizer.chat_template:
        return "has no chat template, but the data are chats"
    chat = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except TEMPLATE_FAULTS:
        return ""  # it may take no such chat; the first of the data that it refuses is named
    _, answered, end = str(text).partition(_ANSWER)
    if not answered:
        fault = "has a chat template that does not print the content of the assistant's messages"
        return f"{fault}, so there is nothing to learn from"
    for marker in _MARKER.findall(end):
        if len(tokenizer.encode(marker, add_special_tokens=False)) != 1:
            return f"has a chat template that ends a turn with {marker}, which is no token of its vocabulary"
    return ""


def refused_chat(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, template: str | None, error: Exception
) -> DataError:
    """The error to raise where a template (None: the tokenizer's) raised ``error``; names the first such example."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        file = Path(tokenizer.name_or_path, "chat_template.jinja")
        held_in = str(file) if template is None and file.is_file() else f"the chat template of {_name(tokenizer)}"
        return DataError(f"{held_in}:{error.lineno}: is not valid Jinja: {error.message}. Correct it, or name another.")
    where = next((row["where"] for row in examples if _is_refused(row, tokenizer, template)), "a prompt")
    return DataError(f"{where}: the chat template refuses this chat: {error}".rstrip(".") + ".")


def _is_refused(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, template: str | None) -> bool:
    answers = [row[column] for column in ("completion", "chosen", "rejected") if column in row]
    try:
        for chat in [row["prompt"] + answer for answer in answers] or [row["messages"]]:
            tokenizer.apply_chat_template(chat, tokenize=False, chat_template=template)
    except TEMPLATE_FAULTS:
        return True
    return False


def set_pad_token(tokenizer: PreTrainedTokenizerBase, args: TrainingArguments) -> int:
    """Set ``args.pad_token``, else the tokenizer's own, else its end of sequence, as TRL does; return its id."""
    token = getattr(args, "pad_token", None) or tokenizer.pad_token or tokenizer.eos_token
    if token is None:
        raise DataError(
            f"The tokenizer {_name(tokenizer)} has neither a padding nor an end-of-sequence token. Set train.pad_token "
            "to a token of its vocabulary."
        )
    if token not in tokenizer.get_vocab():
        raise DataError(f"train.pad_token: {token!r} is not in the tokenizer's vocabulary.")
    if tokenizer.pad_token != token:
        tokenizer.pad_token = token
    return int(tokenizer.pad_token_id)


def _marked_template(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, args: SFTConfig, kind: Kind
) -> str | None:
    """A template that marks the assistant's turns; None where their place is to be found by rendering beginnings."""
    key = "train.assistant_only_loss" if args.assistant_only_loss else "data.targets: assistant"
    if kind not in CHAT_KINDS:
        raise DataError(
            f"{key}: the data are strings, which have no assistant turns. Write `data.targets: last` for the "
            "completions, or `all`."
        )
    if not tokenizer.is_fast:
        raise DataError(
            f"{key}: the tokenizer {_name(tokenizer)} is not a fast one, so the tokens of the assistant's turns "
            "cannot be found. Write `data.targets: last` or `all`."
        )
    try:
        return marked_template(examples, tokenizer)
    except TEMPLATE_FAULTS as error:
        raise refused_chat(examples, tokenizer, None, error) from error
