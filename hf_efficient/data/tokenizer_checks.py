"""What a tokenizer must have for the data and the settings, and what TRL derives from it."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase
from trl import SFTConfig
from trl.chat_template_utils import get_training_chat_template, has_generation_markers

from hf_efficient.data.kinds import CHAT_KINDS, Kind
from hf_efficient.errors import DataError

__all__ = ["check_tokenizer", "set_pad_token", "training_template"]


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, kind: Kind) -> None:
    """That data of this kind can be tokenised.

    Raises:
        DataError: chats without a chat template, or strings without an end-of-sequence token.
    """
    if kind in CHAT_KINDS and not tokenizer.chat_template:
        raise DataError(
            f"The tokenizer {tokenizer.name_or_path or '(unnamed)'} has no chat template, but the data "
            "are chats. Set "
            "train.chat_template_path to a .jinja file or to a model whose template to take, or use plain "
            "text."
        )
    if kind not in CHAT_KINDS and tokenizer.eos_token is None:
        raise DataError(
            f"The tokenizer {tokenizer.name_or_path or '(unnamed)'} has no end-of-sequence token, which "
            "ends every "
            "text. Set train.eos_token to a token of its vocabulary."
        )


def set_pad_token(tokenizer: PreTrainedTokenizerBase, args: SFTConfig) -> int:
    """Give the tokenizer the padding token that SFTTrainer would, and return its id.

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
