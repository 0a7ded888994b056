"""Each layout's way to the canonical columns. Canonical rows are what TRL reads:

    messages             {"messages": [{"role", "content"}, ...]}
    prompt, completion   strings, or lists of messages
    text                 {"text": string}
    preference           {"prompt", "chosen", "rejected"}: strings, or lists of messages

Everything here is a pure function of one row that has the layout's columns, and raises DataError with the row and
the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.data.readers import Row
from hf_efficient.errors import DataError

__all__ = [
    "PREFERENCE_SHAPE",
    "ROLES",
    "Canonical",
    "alpaca",
    "messages",
    "plain_text",
    "preference",
    "prompt_completion",
    "sharegpt",
]

Canonical = dict[str, Any]

PREFERENCE_SHAPE = (
    "prompt, chosen and rejected, all strings or all lists of messages; without prompt, chosen and rejected are "
    "chats that begin alike"
)
ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
}


def messages(row: Row) -> Canonical:
    """Chats as they are."""
    return {"messages": _answered_chat(row, "messages")}


def sharegpt(row: Row) -> Canonical:
    """Chats of ``from`` and ``value``."""
    return {"messages": _answered_chat(row, "conversations")}


def prompt_completion(row: Row) -> Canonical:
    """Prompt and completion, both strings or both chats."""
    return _pair(row, ("prompt", "completion"))


def alpaca(row: Row) -> Canonical:
    """An instruction, perhaps with an input and a system message, and its output, as a chat of two."""
    request = _text(row.value["instruction"], row.where, "instruction")
    given = row.value.get("input")
    if given is not None and _text(given, row.where, "input").strip():
        request = f"{request}\n\n{given}"
    system = row.value.get("system")
    prompt = [{"role": "user", "content": request}]
    if system is not None and _text(system, row.where, "system").strip():
        prompt.insert(0, {"role": "system", "content": system})
    answer = _text(row.value["output"], row.where, "output")
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}


def plain_text(row: Row) -> Canonical:
    """Text as it is."""
    return {"text": _text(row.value["text"], row.where, "text")}


def preference(row: Row) -> Canonical:
    """A prompt and two answers; or two whole chats, whose common beginning is the prompt."""
    chosen, rejected, prompt = row.value["chosen"], row.value["rejected"], row.value.get("prompt")
    if isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
        return _implicit_prompt(row)  # a string beside two whole chats repeats their first message
    if prompt is None:
        raise DataError(f"{row.where}: 'prompt' is missing: the format preference expects {PREFERENCE_SHAPE}.")
    return _pair(row, ("prompt", "chosen", "rejected"))


def _implicit_prompt(row: Row) -> Canonical:
    """Two chats that begin alike: the common messages are the prompt."""
    chosen = _chat(row.value["chosen"], row.where, "chosen")
    rejected = _chat(row.value["rejected"], row.where, "rejected")
    common = 0
    while common < min(len(chosen), len(rejected)) - 1 and chosen[common] == rejected[common]:
        common += 1
    if common == 0:
        raise DataError(
            f"{row.where}: 'chosen' and 'rejected' have no first message in common, and there is no list "
            "of messages "
            "in 'prompt'."
        )
    return {"prompt": chosen[:common], "chosen": chosen[common:], "rejected": rejected[common:]}


def _pair(row: Row, columns: tuple[str, ...]) -> Canonical:
    """Columns that are all strings, or all lists of messages, answered in all but the first column."""
    kinds = {isinstance(row.value[column], list) for column in columns}
    if len(kinds) > 1:
        raise DataError(
            f"{row.where}: {', '.join(map(repr, columns))} are partly strings and partly lists of messages; use one."
        )
    if kinds == {False}:
        return {column: _text(row.value[column], row.where, column) for column in columns}
    canonical = {column: _chat(row.value[column], row.where, column) for column in columns}
    for column in columns[1:]:
        _check_answered(canonical[column], row.where, column)
    return canonical


def _text(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} must be a string, found {_found(value)}.")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{where}: {field!r} holds half a surrogate pair (at character {error.start}), which is no text."
            ) from error
    return value


def _answered_chat(row: Row, field: str) -> list[dict[str, str]]:
    chat = _chat(row.value[field], row.where, field)
    _check_answered(chat, row.where, field)
    return chat


def _chat(value: Any, where: str, field: str) -> list[dict[str, str]]:
    """Messages with ``role`` and ``content``, from those or from ShareGPT's ``from`` and ``value``."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {field!r} must be a list of messages, found {_found(value)}.")
    if not value:
        raise DataError(f"{where}: {field!r} is an empty conversation.")
    return [_message(message, where, f"{field}[{index}]") for index, message in enumerate(value)]


def _message(message: Any, where: str, field: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise DataError(f"{where}: {field!r} must be an object with role and content, found {_found(message)}.")
    who, what = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    if message.get("tool_calls"):
        raise DataError(f"{where}: {field!r} has tool_calls, which are not supported; write them into the content.")
    for name in (who, what):
        if message.get(name) is None:
            problem = "is null" if name in message else "is missing"
            raise DataError(f"{where}: '{field}.{name}' {problem}; a message has role and content (or from and value).")
    role = _text(message[who], where, f"{field}.{who}")
    role = _SHAREGPT_ROLES.get(role, role) if who == "from" else role
    if role not in ROLES:
        known = ", ".join([*ROLES, *_SHAREGPT_ROLES] if who == "from" else ROLES)
        raise DataError(f"{where}: '{field}.{who}' is {role!r}, an unknown role; known: {known}.")
    return {"role": role, "content": _text(message[what], where, f"{field}.{what}")}


def _check_answered(chat: list[dict[str, str]], where: str, field: str) -> None:
    if all(message["role"] != "assistant" for message in chat):
        raise DataError(f"{where}: {field!r} has no assistant turn, so there is nothing to learn from it.")


def _found(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else names.get(type(value), type(value).__name__)
