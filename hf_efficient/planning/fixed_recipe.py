"""A recipe file that extends another one with a change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_efficient.recipe.files import shipped_files, shipped_root
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.writing import dump_yaml


def fixed_recipe(recipe: Recipe, overrides: Mapping[str, Any], path: Path, remark: str) -> str:
    """The text of the file.

    Args:
        recipe: the original, loaded from a file; what the command line changed in it is written too.
        path: where the text is to lie, from which the original is named.
    """
    assert recipe.path is not None
    values: dict[str, Any] = {"extends": _name_of(recipe.path, path.parent)}
    for key, value in {**_from_command_line(recipe), **overrides}.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return f"# {remark}\n{dump_yaml(values)}"


def _name_of(original: Path, folder: Path) -> str:
    """A shipped recipe by its name, another one by its path from the folder."""
    whole = original.resolve()
    for name, shipped in shipped_files(shipped_root()).items():
        if shipped.resolve() == whole:
            return name
    try:
        return Path(os.path.relpath(whole, folder.resolve())).as_posix()
    except ValueError:  # on another drive
        return whole.as_posix()


def _from_command_line(recipe: Recipe) -> dict[str, Any]:
    """What was overridden, by dotted key; a list as a whole, which is how a recipe replaces it."""
    held = recipe.model_dump()
    found: dict[str, Any] = {}
    for key, origin in recipe.provenance.items():
        if origin.source != "command line":
            continue
        value, parts = held, []
        for part in key.split("."):
            if not isinstance(value, dict):
                break
            value = value[part]
            parts.append(part)
        found[".".join(parts)] = value
    return found
