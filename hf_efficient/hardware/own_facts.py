"""A user's own accelerators and prices, beside the shipped ones.

They lie as ``accelerators.yaml`` and ``prices.yaml`` in the folder that ``$HF_EFFICIENT_FACTS`` names, else in
``~/.config/hf_efficient/facts``: rows as those of the shipped ``facts/``, of which only what is needed must be there.
A row of an accelerator takes the place of a shipped one of the same name; a price is preferred to all shipped ones of
the same accelerator and market.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_efficient.errors import SetupError, first_line
from hf_efficient.hardware.paths import config_dir

__all__ = ["OwnTable", "own_facts_folder", "own_rows"]

OwnTable = Literal["accelerators", "prices"]
_TABLES: tuple[OwnTable, ...] = ("accelerators", "prices")
_VARIABLE = "HF_EFFICIENT_FACTS"


def own_facts_folder() -> Path | None:
    """Where this user's own facts are; None where there are none.

    Raises:
        SetupError: the folder that the variable names is not there, or holds none.
    """
    named = os.environ.get(_VARIABLE)
    folder = Path(named).expanduser() if named else config_dir() / "facts"
    held = [table for table in _TABLES if _file(folder, table).is_file()]
    if held or not named:
        return folder if held else None
    what = "holds neither accelerators.yaml nor prices.yaml" if folder.is_dir() else "is no folder"
    raise SetupError(f"{_VARIABLE}: {folder} {what}. Put one of them there, or unset the variable.")


def own_rows(folder: Path | None, table: OwnTable) -> list[dict[str, Any]]:
    """The rows of a table, checked, with what they leave out; none where there is no such file.

    Args:
        folder: from ``own_facts_folder``.
        table: which.

    Raises:
        SetupError: the file cannot be read, or rows are not as they must be: all of them, with line, row and key.
    """
    if folder is None or not _file(folder, table).is_file():
        return []
    path = _file(folder, table)
    try:
        text = path.read_text(encoding="utf-8")
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        held = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise SetupError(f"{path}: cannot be read: {_told(error)}") from error
    if held is None:
        return []
    if not isinstance(held, list):
        raise SetupError(f"{path}: is no list of rows. Each row begins with `- `, as in the shipped {table}.yaml.")
    from hf_efficient.hardware.own_rows import checked_rows

    return checked_rows(table, held, str(path), [part.start_mark.line + 1 for part in node.value])


def _told(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return first_line(error)
    return f"line {mark.line + 1}: {getattr(error, 'problem', None) or first_line(error)}"


def _file(folder: Path, table: OwnTable) -> Path:
    return folder / f"{table}.yaml"
