"""Pieces of Markdown for the model card, and what of this machine must not get into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

__all__ = ["fenced", "hub_name", "number", "table", "without_local_paths"]

_PROSE = ("description", "system")
_DATA_FILES = {".jsonl", ".json", ".csv", ".parquet", ".gguf"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in the cells are made harmless."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def number(value: Any) -> str:
    """A value for a table: counts with separators, measures to four significant digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def hub_name(name: str) -> str | None:
    """``name`` where the Hub takes it for a model or data set; None for paths, files, packages and builtins.

    The Hub refuses a card whose ``base_model`` is not a name of its own, and a path would tell of this
    machine.
    """
    path = Path(name).expanduser()
    if path.exists() or path.suffix.lower() in _DATA_FILES:
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def without_local_paths(value: Any) -> Any:
    """The value with every absolute path in it, at any depth, shortened to its last part.

    Texts that people write (a system message that begins with a slash) stay as they are.
    """
    if isinstance(value, Mapping):
        return {key: item if key in _PROSE else without_local_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_local_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    if PureWindowsPath(value).is_absolute():
        return PureWindowsPath(value).name
    return PurePosixPath(value).name or value if value.startswith(("/", "~")) else value


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
