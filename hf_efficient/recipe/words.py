"""How a problem is put: what was found, in plain words, and which valid name was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = ["any_of", "found", "nearest"]


def found(value: Any) -> str:
    """What a value is, in plain words: ``the text '3'``, ``true``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_shortened(value)!r}" if value else "empty text"
    if isinstance(value, (int, float)):
        return f"the number {_shortened(str(value))}"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a mapping" if value else "an empty mapping"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``name`` was probably meant to be; None where none is close."""
    candidates = {candidate.lower(): candidate for candidate in sorted(valid)}
    # Long names are never typing errors, and difflib is slow on them.
    close = difflib.get_close_matches(name.lower()[:100], candidates, n=1, cutoff=0.6)
    return candidates[close[0]] if close else None


def any_of(choices: Iterable[Any]) -> str:
    """``a, b or c``."""
    shown = [str(choice) for choice in choices]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
