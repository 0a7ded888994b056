"""Which Python packages are here, without importing them."""

from __future__ import annotations

import importlib.util

__all__ = ["is_installed"]


def is_installed(module: str) -> bool:
    """Whether a top-level module can be imported; it is looked for, not run."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # it was put into sys.modules by hand, without a specification
        return True
