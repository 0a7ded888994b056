"""The class that a line of code belongs to."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

__all__ = ["class_at"]


def class_at(filename: str, line: int) -> str:
    """Its name, of nested ones the innermost; empty outside any, or where the file is not here or has changed too much.

    Args:
        filename: of a Python file; it is parsed, never run.
        line: 1-based.
    """
    held = [(last - first, name) for first, last, name in _classes(filename) if first <= line <= last]
    return min(held)[1] if held else ""


@functools.lru_cache(maxsize=64)
def _classes(filename: str) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
