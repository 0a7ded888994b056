"""Where this user's caches and own files lie."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_dir", "config_dir"]


def cache_dir() -> Path:
    """The folder of everything that can be made again: ``$HF_EFFICIENT_CACHE``, else ``~/.cache/hf_efficient``.

    It is not created here.
    """
    named = os.environ.get("HF_EFFICIENT_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hf_efficient"


def config_dir() -> Path:
    """The folder of what this user wrote: ``~/.config/hf_efficient``, or where ``XDG_CONFIG_HOME`` says.

    It is not created here.
    """
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "hf_efficient"
