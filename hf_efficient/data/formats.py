"""The layouts of a row and how they are recognised; :mod:`hf_efficient.data.conversion` has their ways onwards."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from hf_efficient.data import conversion
from hf_efficient.data.conversion import Canonical
from hf_efficient.data.readers import Row
from hf_efficient.errors import DataError

__all__ = ["FORMATS", "Format", "check_columns", "convert", "recognise", "rename"]


@dataclass(frozen=True)
class Format:
    """One layout.

    Attributes:
        required: columns that every row has.
        optional: columns that are used where a row has them.
        method: which training reads it.
        shape: what the columns hold, for messages.
        convert: one row in this layout to the canonical columns.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    method: Literal["sft", "dpo"]
    shape: str
    convert: Callable[[Row], Canonical]


def recognise(columns: Collection[str], method: Literal["sft", "dpo"], where: str) -> str:
    """Name of the first format of ``FORMATS`` whose required columns are all there.

    Raises:
        DataError: none is; lists the columns found and the formats.
    """
    for name, layout in FORMATS.items():
        if layout.method == method and set(layout.required) <= set(columns):
            return name
    known = "; ".join(f"{name} ({', '.join(one.required)})" for name, one in FORMATS.items() if one.method == method)
    hint = ""
    if method == "sft" and {"chosen", "rejected"} <= set(columns):
        hint = " These look like preference pairs: they are for `method: dpo`."
    raise DataError(
        f"{where}: the layout of the rows is not recognised. Columns found: "
        f"{', '.join(sorted(columns)) or 'none'}. "
        f"Known formats: {known}. Rename with `columns`, e.g. columns: {{prompt: question}}.{hint}"
    )


def check_columns(columns: Mapping[str, str], format_name: str, key: str) -> None:
    """That every renamed column is one that the format (or, for ``auto``, any format) has.

    Raises:
        DataError: it is not; names the nearest.
    """
    formats = list(FORMATS.values()) if format_name == "auto" else [FORMATS[format_name]]
    known = sorted({column for one in formats for column in (*one.required, *one.optional)})
    for column in columns:
        if column not in known:
            near = difflib.get_close_matches(column, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise DataError(
                f"{key}.columns: {column!r} is not a column of the format ({', '.join(known)}).{hint} "
                "Write the format's own name first: {prompt: question}."
            )


def rename(row: Row, columns: Mapping[str, str]) -> Row:
    """The row with the format's own names; the file's names of renamed columns are gone.

    Raises:
        DataError: the row has no column of the file's name.
    """
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
    """The canonical columns of a row in the named format.

    Raises:
        DataError: names the row and the field, and says what the format expects.
    """
    layout = FORMATS[format_name]
    for column in layout.required:
        if row.value.get(column) is None:
            problem = "is null" if column in row.value else "is missing"
            found = ", ".join(row.value) or "none"
            raise DataError(
                f"{row.where}: {column!r} {problem} (columns found: {found}); the format {format_name} "
                "expects "
                f"{layout.shape}."
            )
    return layout.convert(row)


FORMATS: dict[str, Format] = {
    "messages": Format(
        ("messages",),
        (),
        "sft",
        "messages: a list of {role, content}, at least one of them the assistant's",
        conversion.messages,
    ),
    "sharegpt": Format(
        ("conversations",), (), "sft", "conversations: a list of {from: human|gpt|system, value}", conversion.sharegpt
    ),
    "prompt_completion": Format(
        ("prompt", "completion"),
        (),
        "sft",
        "prompt and completion, both strings or both lists of messages",
        conversion.prompt_completion,
    ),
    "alpaca": Format(
        ("instruction", "output"),
        ("input", "system"),
        "sft",
        "instruction and output (and perhaps input and system), all strings",
        conversion.alpaca,
    ),
    "text": Format(("text",), (), "sft", "text: a string", conversion.plain_text),
    "preference": Format(
        ("chosen", "rejected"),
        ("prompt",),
        "dpo",
        conversion.PREFERENCE_SHAPE,
        conversion.preference,
    ),
}
"""In the order in which ``auto`` tries them."""
