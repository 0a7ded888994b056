"""Where this user's caches and own files lie.

The fact files beside this module: read once, and asked for by name; a name that is not there is never guessed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import SetupError


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


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one that is built on libyaml, where PyYAML has it: a tenth of the time."""
_FOLDER = Path(__file__).with_name("data")


def rows(table: str) -> list[dict[str, Any]]:
    """The rows of ``facts/<table>.yaml``."""
    with (_FOLDER / f"{table}.yaml").open(encoding="utf-8") as file:
        held: list[dict[str, Any]] = yaml.load(file, Loader=_LOADER)
    return held


def plain(name: str) -> str:
    """A name as it is compared: lower case, words parted by one space (``A100-80GB_SXM`` is ``a100 80gb sxm``)."""
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Those of the known names that hold the wanted one, else the three most alike; empty where none is near."""
    spelled: Mapping[str, str] = {plain(one): one for one in known}
    wanted = plain(name)
    holding = [one for one in spelled if wanted and wanted in one]
    return [spelled[one] for one in holding or difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.5)]


def unknown(what: str, name: str, known: Iterable[str], remedy: str = "") -> SetupError:
    """The error for a name that a table does not hold: it names the nearest ones, or all where none is near."""
    names = list(known)
    close = nearest(name, names)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(names)}."
    return SetupError(" ".join(part for part in (f"{name!r} is no {what} with known figures.", hint, remedy) if part))
