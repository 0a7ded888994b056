"""A library's module variable, other for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["replaced"]


@contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Within, ``module.name`` is ``value``; afterwards as it was.

    Raises:
        AttributeError: the module has no such variable.
    """
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
