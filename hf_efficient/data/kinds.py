"""What canonical rows are, so that sources of several layouts can be one data set.

All rows of a data set are of one kind. Chats (``messages``) can be cut into a conversational prompt and
completion, and such a pair can be joined into a chat; strings cannot be turned into chats, nor chats into
strings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import datasets

from hf_efficient.errors import DataError

__all__ = [
    "CHAT_KINDS",
    "Kind",
    "add_system",
    "common_kind",
    "features_of",
    "is_empty",
    "kind_of",
    "question_and_answer",
    "recast",
]

Kind = Literal["messages", "chat_pair", "string_pair", "text", "chat_preference", "string_preference"]

CHAT_KINDS = ("messages", "chat_pair", "chat_preference")

_NAMES: dict[Kind, str] = {
    "messages": "chats",
    "chat_pair": "prompt and completion as messages",
    "string_pair": "prompt and completion as strings",
    "text": "plain text",
    "chat_preference": "preference pairs of messages",
    "string_preference": "preference pairs of strings",
}


def kind_of(row: Mapping[str, Any]) -> Kind:
    """The kind of a canonical row."""
    if "messages" in row:
        return "messages"
    if "text" in row:
        return "text"
    is_chat = isinstance(row["prompt"], list)
    if "chosen" in row:
        return "chat_preference" if is_chat else "string_preference"
    return "chat_pair" if is_chat else "string_pair"


def common_kind(kinds: Mapping[str, Kind]) -> Kind:
    """The one kind that all sources can take.

    Chats beside conversational pairs become pairs. Everything else must be the same.

    Args:
        kinds: name of each source to its kind; not empty.

    Raises:
        DataError: two sources cannot be mixed; names both.
    """
    (first, common), *others = kinds.items()
    for name, kind in others:
        if {kind, common} == {"messages", "chat_pair"}:
            common = "chat_pair"
        elif kind != common:
            raise DataError(
                f"{first} and {name} cannot be mixed: the first has {_NAMES[common]}, the second "
                f"{_NAMES[kind]}. Bring "
                "them into one layout."
            )
    return common


def recast(row: dict[str, Any], kind: Kind, where: str) -> dict[str, Any]:
    """The row as another kind, where that is possible; itself where it is of that kind.

    A chat becomes a pair at its last assistant turn: everything before it is the prompt, what follows it is
        left out.

    Raises:
        DataError: the row is of a kind that cannot be turned into the other, or has nothing before its last
            answer.
    """
    own = kind_of(row)
    if own == kind:
        return row
    if own == "chat_pair" and kind == "messages":
        return {"messages": row["prompt"] + row["completion"]}
    if own == "messages" and kind == "chat_pair":
        last = _last_answer(row["messages"])
        if last == 0:
            raise DataError(f"{where}: 'messages' begins with its only assistant turn; there is no prompt before it.")
        return {"prompt": row["messages"][:last], "completion": [row["messages"][last]]}
    raise DataError(f"{where}: this row has {_NAMES[own]}, the rows before it have {_NAMES[kind]}; use one layout.")


def add_system(row: dict[str, Any], system: str) -> dict[str, Any]:
    """A chat (or pair, or preference) with the system message put first, unless it has one."""
    column = "messages" if "messages" in row else "prompt"
    if row[column][0]["role"] == "system":
        return row
    return {**row, column: [{"role": "system", "content": system}, *row[column]]}


def question_and_answer(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """``{"prompt": messages or string, "answer": string}``: what to generate from, and what is expected.

    The answer is the last assistant turn. None for plain text, and for a chat that begins with its only
    answer.
    """
    kind = kind_of(row)
    if kind == "string_pair":
        return {"prompt": row["prompt"], "answer": row["completion"]}
    if kind not in ("messages", "chat_pair"):
        return None
    messages = row["messages"] if kind == "messages" else row["prompt"] + row["completion"]
    last = _last_answer(messages)
    return {"prompt": messages[:last], "answer": messages[last]["content"]} if last else None


def is_empty(row: Mapping[str, Any]) -> bool:
    """Whether what is to be learnt from an example is blank: its text, its completion or its last answer."""
    if "text" in row:
        return not row["text"].strip()
    learnt = row["messages"] if "messages" in row else row["completion"]
    return not (learnt if isinstance(learnt, str) else learnt[_last_answer(learnt)]["content"]).strip()


def features_of(kind: Kind) -> datasets.Features:
    """The columns of a data set of this kind, and ``where``: the place of each row."""
    string = datasets.Value("string")
    chat = datasets.List({"role": string, "content": string})
    columns = {
        "messages": ("messages",),
        "chat_pair": ("prompt", "completion"),
        "string_pair": ("prompt", "completion"),
        "text": ("text",),
        "chat_preference": ("prompt", "chosen", "rejected"),
        "string_preference": ("prompt", "chosen", "rejected"),
    }[kind]
    return datasets.Features({**dict.fromkeys(columns, chat if kind in CHAT_KINDS else string), "where": string})


def _last_answer(messages: list[dict[str, str]]) -> int:
    return max(index for index, message in enumerate(messages) if message["role"] == "assistant")
