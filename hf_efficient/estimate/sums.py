"""Sums in which a part that is not known makes the whole unknown: missing is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

_N = TypeVar("_N", int, float)


def sum_if_known(parts: Sequence[_N | None]) -> _N | None:
    """The sum; None where a part is None, or where there is none: [1, 2] is 3, [1, None] and [] are None."""
    return None if not parts or None in parts else sum(parts)  # type: ignore[arg-type]
