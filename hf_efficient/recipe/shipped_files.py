"""Where the shipped recipes lie, and by which names they and their bases are meant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hf_efficient.recipe.words import nearest

__all__ = ["SUFFIXES", "is_file", "near_names", "shipped_files", "shipped_root"]

SUFFIXES = (".yaml", ".yml")
# Layers to extend: nothing that can be run by itself.
_BASES = "bases"
# Configurations of accelerate are no recipes at all.
_OTHER = "accelerate"
_MOST_NEAR = 5


def shipped_root() -> Path:
    """The folder of the shipped recipes: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "shipped_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def shipped_files(root: Path, *, bases: bool = False) -> dict[str, Path]:
    """Name (``llama3.1-8b/qlora``) to file, in the order of the names.

    Args:
        root: the folder; there are none where it is missing.
        bases: also those that can only be extended (``bases/qlora``).
    """
    found = {}
    for path in sorted(root.rglob("*.yaml")):
        below = path.relative_to(root)
        if _OTHER not in below.parts[:-1] and (bases or _BASES not in below.parts[:-1]):
            found[below.with_suffix("").as_posix()] = path
    return found


def near_names(text: str, names: Iterable[str]) -> list[str]:
    """The names that ``text`` was probably meant to be: all that share the part it is close to, else the nearest."""
    valid = sorted(names)
    part = None if "/" in text else nearest(text, {part for name in valid for part in name.split("/")})
    if part is None:
        close = nearest(text, valid)
        return [close] if close is not None else []
    # The quickstart first: it runs anywhere.
    found = sorted((name for name in valid if part in name.split("/")), key=lambda name: "quickstart" not in name)
    return found[:_MOST_NEAR]


def is_file(path: Path) -> bool:
    """``path.is_file()``, and False for what can be no path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
