"""What a tokenizer must have for the data and the settings, and what TRL derives from it."""

from __future__ import annotations

from typing import Any

import datasets
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from trl import DPOConfig, SFTConfig
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from hf_efficient.data.kinds import CHAT_KINDS, Kind
from hf_efficient.errors import DataError

__all__ = ["check_tokenizer", "refused_chat", "set_pad_token", "training_template"]


_QUESTION, _ANSWER = "asked-by-the-user", "answered-by-the-assistant"


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, kind: Kind, args: SFTConfig | DPOConfig) -> None:
    """That data of this kind can be tokenised.

    Raises:
        DataError: chats without a chat template, or with one that does not print the answers; strings without an
            end-of-sequence token.
    """
    name = tokenizer.name_or_path or "(unnamed)"
    if kind in CHAT_KINDS:
        has = (
            "has no chat template, but the data are chats"
            if not tokenizer.chat_template
            else _template_fault(tokenizer)
        )
        if has:
            remedy = (
                "Set train.chat_template_path to a .jinja file or to a model whose template to take, or use plain text."
                if hasattr(args, "chat_template_path")
                else "Name a tokenizer that has one in model.tokenizer, or use plain text."
            )
            raise DataError(f"The tokenizer {name} {has}. {remedy}")
    elif tokenizer.eos_token is None:
        remedy = (
            "Set train.eos_token to a token of its vocabulary."
            if hasattr(args, "eos_token")
            else "Name a tokenizer that has one in model.tokenizer."
        )
        raise DataError(f"The tokenizer {name} has no end-of-sequence token, which ends every text. {remedy}")


def _template_fault(tokenizer: PreTrainedTokenizerBase) -> str:
    chat = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except TemplateError:
        return ""  # it may take no such chat; the first of the data that it refuses is named
    if _ANSWER in str(text):
        return ""
    return (
        "has a chat template that does not print the content of the assistant's messages, so there is nothing to "
        "learn from"
    )


def refused_chat(
    examples: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, template: str | None, error: TemplateError
) -> DataError:
    """The error to raise where a template raised ``error`` on one of the examples; names the first that it refuses.

    Args:
        examples: canonical rows with ``where``.
        tokenizer: with its template.
        template: in place of the tokenizer's own.
        error: what the template raised.
    """
    where = next((row["where"] for row in examples if _is_refused(row, tokenizer, template)), "a prompt")
    return DataError(f"{where}: the chat template refuses this chat: {error}.")


def _is_refused(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase, template: str | None) -> bool:
    answers = [row[column] for column in ("completion", "chosen", "rejected") if column in row]
    for chat in [row["prompt"] + answer for answer in answers] or [row["messages"]]:
        try:
            tokenizer.apply_chat_template(chat, tokenize=False, chat_template=template)
        except TemplateError:
            return True
    return False


def set_pad_token(tokenizer: PreTrainedTokenizerBase, args: SFTConfig | DPOConfig) -> int:
    """Give the tokenizer the padding token that TRL's trainers would, and return its id.

    That is ``args.pad_token``, else the tokenizer's own, else its end-of-sequence token.

    Raises:
        DataError: there is none, or it is not in the vocabulary.
    """
    token = args.pad_token or tokenizer.pad_token or tokenizer.eos_token
    if token is None:
        raise DataError(
            f"The tokenizer {tokenizer.name_or_path or '(unnamed)'} has neither a padding nor an "
            "end-of-sequence "
            "token. Set train.pad_token to a token of its vocabulary."
        )
    if token not in tokenizer.get_vocab():
        raise DataError(f"train.pad_token: {token!r} is not in the tokenizer's vocabulary.")
    if tokenizer.pad_token != token:
        tokenizer.pad_token = token
    return int(tokenizer.pad_token_id)


def training_template(tokenizer: PreTrainedTokenizerBase, args: SFTConfig, kind: Kind) -> str | None:
    """The template that SFTTrainer would use in place of the tokenizer's; None for the tokenizer's own.

    Only ``assistant_only_loss`` needs another one: with ``{% generation %}`` markers.

    Raises:
        DataError: ``assistant_only_loss`` on data that are no chats, or with a template without markers for
            which TRL knows no replacement.
    """
    if not args.assistant_only_loss:
        return None
    if kind not in CHAT_KINDS:
        raise DataError("train.assistant_only_loss: the data are strings, not chats. Use train.completion_only_loss.")
    if has_generation_markers(tokenizer.chat_template):
        return None
    try:
        return get_training_chat_template(tokenizer)
    except ValueError as error:
        raise DataError(
            "train.assistant_only_loss: the chat template has no {% generation %} markers around the "
            "assistant's "
            "turns, and TRL knows no version of it that has. Use train.completion_only_loss: true (loss "
            "on the last "
            "answer), or name a template with markers in train.chat_template_path."
        ) from error
