"""What Python's JSON reader cannot take although it may be JSON, in plain words and with the line."""

from __future__ import annotations

import re
import sys

__all__ = ["json_fault"]

_STRING = r'"(?:[^"\\]|\\.)*"'
_NUMBERS = re.compile(_STRING + r"|(\d+)", re.DOTALL)
_BRACKETS = re.compile(_STRING + r"|([\[{])|([\]}])", re.DOTALL)


def json_fault(text: str, error: ValueError | RecursionError) -> tuple[int, str]:
    """The 1-based line of the text that the reader stumbled over, and what is wrong there.

    Args:
        text: what was read.
        error: what ``json.loads`` raised for it, other than a ``JSONDecodeError``.
    """
    if isinstance(error, RecursionError):
        depth, position = _deepest(text)
        return _line(text, position), f"lists and objects lie {depth} deep in one another, too deep to be read"
    limit = getattr(sys, "get_int_max_str_digits", lambda: 0)()  # Python 3.10 before its seventh patch has no limit
    for match in _NUMBERS.finditer(text):
        digits = len(match[1] or "")
        if 0 < limit < digits:
            words = f"holds a whole number of {digits} digits, too long to be read. Write it as a string"
            return _line(text, match.start()), words
    return 1, f"not readable as JSON: {error}"


def _deepest(text: str) -> tuple[int, int]:
    depth = most = position = 0
    for match in _BRACKETS.finditer(text):
        depth += bool(match[1]) - bool(match[2])
        if depth > most:
            most, position = depth, match.start()
    return most, position


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
