"""The layouts of a row, their way to the canonical columns that TRL reads, and how several become one data set.

    messages             {"messages": [{"role", "content"}, ...]}
    prompt, completion   strings, or lists of messages
    text                 {"text": string}
    preference           {"prompt", "chosen", "rejected"}: strings, or lists of messages
    unpaired             {"prompt", "completion", "label"}: the same; true for a good answer, false for a bad one
    prompt               {"prompt", "answer"}: the same, to be answered; the answer, if any, is a string for the rewards

All rows of a data set are of one kind. Chats (``messages``) can be cut into a conversational prompt and completion, and
such a pair can be joined into a chat. Strings cannot be turned into chats, nor chats into strings.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from jinja2 import TemplateError

from hf_efficient.data.sources import Row, kind_of_value
from hf_efficient.errors import DataError
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.objectives import FORMATS_OF, OBJECTIVES, ObjectiveName

Canonical = dict[str, Any]

_ROLES = ("system", "user", "assistant", "tool")
_SHAREGPT_ROLES = {"human": "user", **dict.fromkeys(("gpt", "bot", "chatgpt", "model"), "assistant")}

Kind = str
"""``messages``, ``text``, or ``chat_`` or ``string_`` and a shape of ``_SHAPES``."""
_SHAPES = {
    "pair": "prompt and completion",
    "preference": "preference pairs",
    "unpaired": "labelled answers",
    "prompt": "prompts",
}
TEMPLATE_FAULTS = (TemplateError, ArithmeticError, TypeError, RecursionError)
"""What a chat template raises: its own, and what Python does for ``1 / 0`` or ``range(10 ** 9)`` in it."""
CHAT_KINDS = ("messages", *(f"chat_{shape}" for shape in _SHAPES))
_NAMES = {
    "messages": "chats",
    "text": "plain text",
    **{f"chat_{shape}": f"{what} as messages" for shape, what in _SHAPES.items()},
    **{f"string_{shape}": f"{what} as strings" for shape, what in _SHAPES.items()},
}


def recognise(columns: Mapping[str, Any], objective: ObjectiveName, where: str) -> str:
    wanted = formats_of(objective)
    for name, layout in wanted.items():
        if set(layout.required) <= set(columns):
            return name
    known = "; ".join(f"{name} ({', '.join(one.required)})" for name, one in wanted.items())
    lists = {name: value for name, value in columns.items() if isinstance(value, list)}
    hint, chat = "", next((name for name, value in lists.items() if value and isinstance(value[0], Mapping)), None)
    texts = [*(name for name, value in columns.items() if isinstance(value, str)), "question", "answer"]
    pair = f"prompt: {texts[0]}, completion: {texts[1]}" if "prompt_completion" in wanted else "prompt: question"
    renamed = f"messages: {chat}" if chat is not None and "messages" in wanted else pair
    if {"chosen", "rejected"} <= set(columns):
        hint = " These look like preference pairs: they are for `objective: dpo`."
    elif OBJECTIVES[objective].is_of_preferences and {"prompt", "completion", "label"} <= set(columns):
        hint = " These look like labelled answers: they are for `objective: kto`."
    raise DataError(
        f"{where}: the layout of the rows is not recognised. Columns found: {', '.join(sorted(columns)) or 'none'}. "
        f"Known formats: {known}. Rename with `columns`, below the `path` of this source, "
        f"e.g. columns: {{{renamed}}}.{hint}"
    )


def check_columns(columns: Mapping[str, str], format_name: str, key: str) -> None:
    """Refuse, with ``DataError``, a renamed column that the format (or, for ``auto``, any) does not have."""
    formats = list(FORMATS.values()) if format_name == "auto" else [FORMATS[format_name]]
    known = sorted({column for one in formats for column in (*one.required, *one.optional)})
    for column in columns:
        if column not in known:
            near = difflib.get_close_matches(column, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise DataError(
                f"{key}: {column!r} is not a column of the format ({', '.join(known)}).{hint} "
                "Write the format's own name first: {prompt: question}."
            )


def rename(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with the format's own names in place of the file's; ``DataError`` where the row has no such column."""
    if not columns:
        return row
    for ours, theirs in columns.items():
        if theirs not in row.value:
            found = ", ".join(row.value) or "none"
            raise DataError(
                f"{row.where}: there is no column {theirs!r} (columns: {{{ours}: {theirs}}}); columns found: {found}."
            )
    rest = {name: value for name, value in row.value.items() if name not in columns.values()}
    return Row(row.where, {**rest, **{ours: row.value[theirs] for ours, theirs in columns.items()}})


def convert(row: Row, format_name: str) -> Canonical:
    """The canonical columns of a row in the named format; a ``DataError`` names row, field and the expected shape."""
    layout = FORMATS[format_name]
    for column in layout.required:
        if row.value.get(column) is None:
            problem = "is null" if column in row.value else "is missing"
            found = ", ".join(row.value) or "none"
            raise DataError(
                f"{row.where}: {column!r} {problem} (columns found: {found}); the format {format_name} expects "
                f"{layout.shape}."
            )
    return layout.convert(row)


def _alpaca(row: Row) -> Canonical:
    request = _text(row.value["instruction"], row.where, "instruction")
    given = row.value.get("input")
    if given is not None and _text(given, row.where, "input").strip():
        request = f"{request}\n\n{given}"
    system = row.value.get("system")
    prompt = _asked(request)
    if system is not None and _text(system, row.where, "system").strip():
        prompt.insert(0, {"role": "system", "content": system})
    answer = _text(row.value["output"], row.where, "output")
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": answer}]}


def _preference(row: Row) -> Canonical:
    """A prompt and two answers; or two whole chats, whose common beginning is the prompt."""
    chosen, rejected, prompt = row.value["chosen"], row.value["rejected"], row.value.get("prompt")
    if isinstance(chosen, list) and isinstance(rejected, list) and not isinstance(prompt, list):
        return _implicit_prompt(row)  # a string beside two whole chats repeats their first message
    if prompt is None:
        raise DataError(
            f"{row.where}: 'prompt' is missing: the format preference expects {FORMATS['preference'].shape}."
        )
    return _pair(row, ("prompt", "chosen", "rejected"))


def _unpaired(row: Row) -> Canonical:
    label = row.value["label"]
    if not isinstance(label, bool):
        found = kind_of_value(label)
        raise DataError(f"{row.where}: 'label' must be true (a good answer) or false (a bad one), found {found}.")
    return {**_pair(row, ("prompt", "completion")), "label": label}


def _prompt(row: Row) -> Canonical:
    prompt = row.value["prompt"]
    if not isinstance(prompt, list):
        return {"prompt": _text(prompt, row.where, "prompt"), **_expected(row)}
    chat = _chat(prompt, row.where, "prompt")
    if chat[-1]["role"] == "assistant":
        raise DataError(f"{row.where}: 'prompt' ends with an assistant turn. Leave it out: the model is to answer.")
    return {"prompt": chat, **_expected(row)}


def _asked(request: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": request}]


def _expected(row: Row) -> Canonical:
    """What rewards compare a completion with; a number may be written as one."""
    answer = row.value.get("answer")
    if isinstance(answer, (int, float)) and not isinstance(answer, bool):
        answer = f"{answer:g}" if isinstance(answer, float) else str(answer)
    return {"answer": None if answer is None else _text(answer, row.where, "answer")}


def _implicit_prompt(row: Row) -> Canonical:
    chosen = _chat(row.value["chosen"], row.where, "chosen")
    rejected = _chat(row.value["rejected"], row.where, "rejected")
    common = 0
    while common < min(len(chosen), len(rejected)) - 1 and chosen[common] == rejected[common]:
        common += 1
    if any(side[common]["role"] != "assistant" for side in (chosen, rejected)) and common:
        raise DataError(
            f"{row.where}: the prompts of 'chosen' and 'rejected' differ from message {common + 1} on. "
            "Both must answer the same conversation."
        )
    if common == 0:
        raise DataError(
            f"{row.where}: 'chosen' and 'rejected' have no first message in common, and there is no list of messages "
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
    prompt = _chat(row.value[columns[0]], row.where, columns[0])
    return {columns[0]: prompt, **{column: _answered_chat(row, column) for column in columns[1:]}}


def _text(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: {field!r} must be a string, found {kind_of_value(value)}.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        message = f"holds half a surrogate pair (at character {error.start}), which is no text."
        raise DataError(f"{where}: {field!r} {message}") from error
    return value


def _answered_chat(row: Row, field: str) -> list[dict[str, str]]:
    chat = _chat(row.value[field], row.where, field)
    if all(message["role"] != "assistant" for message in chat):
        is_sharegpt = "from" in row.value[field][0]
        hint = " Its messages have from and value: an answer is from gpt or assistant." if is_sharegpt else ""
        raise DataError(f"{row.where}: {field!r} has no assistant turn, so there is nothing to learn from it.{hint}")
    return chat


def _chat(value: Any, where: str, field: str) -> list[dict[str, str]]:
    """Messages with ``role`` and ``content``, from those or from ShareGPT's ``from`` and ``value``."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {field!r} must be a list of messages, found {kind_of_value(value)}.")
    if not value:
        raise DataError(f"{where}: {field!r} is an empty conversation.")
    return [_message(message, where, f"{field}[{index}]") for index, message in enumerate(value)]


def _message(message: Any, where: str, field: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        found = kind_of_value(message)
        raise DataError(f"{where}: {field!r} must be an object with role and content, found {found}.")
    who, what = ("from", "value") if "from" in message and "role" not in message else ("role", "content")
    if message.get("tool_calls"):
        raise DataError(f"{where}: {field!r} has tool_calls, which are not supported; write them into the content.")
    for name in (who, what):
        if message.get(name) is None:
            problem = "is null" if name in message else "is missing"
            raise DataError(f"{where}: '{field}.{name}' {problem}; a message has role and content (or from and value).")
    role = _text(message[who], where, f"{field}.{who}")
    role = _SHAREGPT_ROLES.get(role, role) if who == "from" else role
    if role not in _ROLES:
        known = ", ".join([*_ROLES, *_SHAREGPT_ROLES] if who == "from" else _ROLES)
        raise DataError(f"{where}: '{field}.{who}' is {role!r}, an unknown role; known: {known}.")
    return {"role": role, "content": _text(message[what], where, f"{field}.{what}")}


@dataclass(frozen=True)
class Format:
    """One layout: the columns that every row has, those used where a row has them, and what they hold, in words."""

    required: Sequence[str]
    shape: str
    convert: Callable[[Row], Canonical]
    optional: Sequence[str] = ()


_CONVERTERS: dict[str, Callable[[Row], Canonical]] = {
    "messages": lambda row: {"messages": _answered_chat(row, "messages")},
    "sharegpt": lambda row: {"messages": _answered_chat(row, "conversations")},
    "prompt_completion": lambda row: _pair(row, ("prompt", "completion")),
    "alpaca": _alpaca,
    "text": lambda row: {"text": _text(row.value["text"], row.where, "text")},
    "preference": _preference,
    "unpaired": _unpaired,
    "prompt": _prompt,
    "question": lambda row: {"prompt": _asked(_text(row.value["question"], row.where, "question")), **_expected(row)},
}
FORMATS = {name: Format(convert=_CONVERTERS[name], **about) for name, about in key_table("formats").items()}
"""In the order in which ``auto`` tries them."""


def formats_of(objective: ObjectiveName) -> dict[str, Format]:
    return {name: FORMATS[name] for name in FORMATS_OF[OBJECTIVES[objective].data]}


def kind_of(row: Mapping[str, Any]) -> Kind:
    if "messages" in row:
        return "messages"
    if "text" in row:
        return "text"
    shapes = {"chosen": "preference", "label": "unpaired", "completion": "pair"}
    shape = next((shape for column, shape in shapes.items() if column in row), "prompt")
    return f"{'chat' if isinstance(row['prompt'], list) else 'string'}_{shape}"


def common_kind(kinds: Mapping[str, Kind]) -> Kind:
    """The one kind of all sources (by name), chats beside pairs become pairs; a ``DataError`` names two that clash."""
    (first, common), *others = kinds.items()
    for name, kind in others:
        if {kind, common} == {"messages", "chat_pair"}:
            common = "chat_pair"
        elif kind != common:
            raise DataError(
                f"{first} and {name} cannot be mixed: the first has {_NAMES[common]}, the second {_NAMES[kind]}. Bring "
                "them into one layout."
            )
    return common


_NOTHING_BEFORE = "'messages' begins with its only assistant turn; there is no prompt before it."


def without_answer(kind: Kind) -> Kind:
    """What a row of the kind becomes where the model is to answer it."""
    return "chat_prompt" if kind in CHAT_KINDS else "string_prompt"


def recast(row: Canonical, kind: Kind, where: str) -> Canonical:
    """The row as another kind. A chat becomes a pair at its last assistant turn; what follows is left out. Raises
    ``DataError``: the row cannot be turned into the kind, or has nothing before its last answer."""
    own = kind_of(row)
    if own == kind:
        return row
    if own in ("messages", "chat_pair", "string_pair") and kind == without_answer(own):
        asked = question_and_answer(row)
        if asked is None:
            raise DataError(f"{where}: {_NOTHING_BEFORE}")
        return asked
    if own == "chat_pair" and kind == "messages":
        return {"messages": row["prompt"] + row["completion"]}
    if own == "messages" and kind == "chat_pair":
        last = _last_answer(row["messages"])
        if last == 0:
            raise DataError(f"{where}: {_NOTHING_BEFORE}")
        return {"prompt": row["messages"][:last], "completion": [row["messages"][last]]}
    raise DataError(f"{where}: this row has {_NAMES[own]}, the rows before it have {_NAMES[kind]}; use one layout.")


def add_system(row: Canonical, system: str) -> Canonical:
    """A chat (or pair, or preference) with the system message put first, unless it has one."""
    column = "messages" if "messages" in row else "prompt"
    if row[column][0]["role"] == "system":
        return row
    return {**row, column: [{"role": "system", "content": system}, *row[column]]}


def question_and_answer(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """``{"prompt": messages or string, "answer": string}``, by the last assistant turn; None without a prompt."""
    kind = kind_of(row)
    if kind == "string_pair":
        return {"prompt": row["prompt"], "answer": row["completion"]}
    if kind not in ("messages", "chat_pair"):
        return None
    chat = row["messages"] if kind == "messages" else row["prompt"] + row["completion"]
    last = _last_answer(chat)
    return {"prompt": chat[:last], "answer": chat[last]["content"]} if last else None


def is_empty(row: Mapping[str, Any]) -> bool:
    """Whether what is to be learnt from an example is blank: its text, its completion or its last answer."""
    learnt = next(row[column] for column in ("text", "messages", "completion") if column in row)
    return not (learnt if isinstance(learnt, str) else learnt[_last_answer(learnt)]["content"]).strip()


def features_of(kind: Kind) -> datasets.Features:
    string = datasets.Value("string")
    cell: Any = datasets.List({"role": string, "content": string}) if kind in CHAT_KINDS else string
    columns: dict[str, dict[str, Any]] = {
        "pair": {"prompt": cell, "completion": cell},
        "preference": {"prompt": cell, "chosen": cell, "rejected": cell},
        "unpaired": {"prompt": cell, "completion": cell, "label": datasets.Value("bool")},
        "prompt": {"prompt": cell, "answer": string},
    }
    return datasets.Features({**columns.get(kind.rpartition("_")[2], {kind: cell}), "where": string})


def _last_answer(messages: list[dict[str, str]]) -> int:
    return max(index for index, message in enumerate(messages) if message["role"] == "assistant")
