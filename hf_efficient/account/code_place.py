"""A line of code in few words."""

from __future__ import annotations

__all__ = ["code_place"]


def code_place(filename: str, line: int, name: str) -> str:
    """``transformers/models/llama/modeling_llama.py:180 forward``; a function without a file is its name.

    Args:
        filename: as Python knows it.
        line: 1-based.
        name: of the function.
    """
    path = filename.replace("\\", "/")
    if not path.endswith(".py"):
        return name
    short = path.split("/site-packages/")[-1] if "/site-packages/" in path else "/".join(path.split("/")[-3:])
    return f"{short}:{line} {name}"
