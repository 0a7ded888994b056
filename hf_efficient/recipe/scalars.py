"""Plain YAML scalars read as YAML 1.2's core schema reads them.

PyYAML speaks YAML 1.1, in which ``no`` is false, ``010`` is eight, ``12:30`` is a number of minutes and
``2e-4`` is text. None of this is what somebody who writes a recipe means.
"""

from __future__ import annotations

import re

__all__ = ["read_scalar"]

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)\Z")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
# No setting needs more digits, and Python itself refuses to convert very long ones.
_MOST_DIGITS = 100


def read_scalar(text: str) -> str | int | float | bool | None:
    """The value that an unquoted scalar stands for; what is no null, bool or number is text.

    Raises:
        ValueError: a number with more than 100 characters.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text in _NAN or _INF.match(text):
        return float(text.replace(".", ""))
    for pattern, convert in ((_INT, int), (_OCTAL, _octal), (_HEX, _hexadecimal), (_FLOAT, float)):
        if pattern.match(text):
            if len(text) > _MOST_DIGITS:
                raise ValueError("is a number of more than 100 characters.")
            return convert(text)
    return text


def _octal(text: str) -> int:
    return int(text[2:], 8)


def _hexadecimal(text: str) -> int:
    return int(text[2:], 16)
