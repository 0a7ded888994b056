"""Functions by name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hf_efficient.errors import SetupError, first_line

__all__ = ["named_functions"]


def named_functions(key: str, names: Sequence[str]) -> list[Callable[..., Any]]:
    """Python functions by ``package.module:function`` or ``package.module:Class.method``.

    Args:
        key: of the recipe, or the argument, for messages.
        names: of the functions.

    Raises:
        SetupError: a module cannot be imported, there is no such name in it, or it is no function of Python.
    """
    return [_function(key, name) for name in names]


def _function(key: str, name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SetupError(f"{key}: {name}: {module} cannot be imported: {first_line(error)}") from error
    for part in path.split("."):
        if not part or not hasattr(found, part):
            raise SetupError(f"{key}: {name}: there is no {part or 'name'} in it; write package.module:function")
        found = getattr(found, part)
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not inspect.isfunction(found):
        raise SetupError(f"{key}: {name} is no function written in Python, whose lines could be told; name one that is")
    return found
