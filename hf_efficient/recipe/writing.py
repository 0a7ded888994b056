"""Plain data to YAML that this package, and YAML 1.1 readers such as PyYAML, read back as the same data.

A new recipe file, written by a command.

The recipe as a run has written it down: every value, who set it, and what it ran on.

The keys in which the recipes of several runs differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.recipe.files import SUFFIXES
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import dotted, read_scalar, wrap


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever either version of YAML would misread it, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    """The quotes that a text needs; None leaves it to PyYAML, which knows YAML 1.1 and the indicators."""
    # Only an escape keeps these apart from a line feed.
    if any(character in text for character in "\r\x85\u2028\u2029"):
        return '"'
    try:
        return None if isinstance(read_scalar(text), str) else "'"
    except ValueError:
        return "'"


class _BlockDumper(_Dumper):
    """Text of several lines as it is, where YAML can."""


def _represent_lines(dumper: _Dumper, text: str) -> yaml.Node:
    style = _style(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text and not style else style)


_Dumper.add_representer(str, _represent_text)
_BlockDumper.add_representer(str, _represent_lines)


def dump_yaml(data: Any, *, blocks: bool = False) -> str:
    """Dicts, lists, text, numbers, booleans and None as a YAML document, keys in their order.

    Args:
        data: what to write.
        blocks: text of several lines is written line by line (``|``), for people to read.
    """
    dumper = _BlockDumper if blocks else _Dumper
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)


def check_new_file(path: Path, flag: str) -> None:
    """Refuse what could not be written, before anything is computed for it.

    Args:
        path: of the new file.
        flag: that named it: ``--fix``.

    Raises:
        OutputError: the file exists, its folder does not, or its name is not that of a recipe.
    """
    if path.suffix not in SUFFIXES:
        raise OutputError(f"{flag}: {path} is not named like a recipe. Write a name that ends in .yaml.")
    if path.exists() or path.is_symlink():
        raise OutputError(f"{flag}: {path} exists already. Write the name of a new file, or remove it.")
    if not path.parent.is_dir():
        raise OutputError(f"{flag}: there is no folder {path.parent}. Make it, or write the name of a file elsewhere.")


def write_new_file(path: Path, text: str, flag: str) -> None:
    """Write a file that is not there yet.

    Args:
        path: of the new file.
        text: that it is to hold.
        flag: that named it: ``--fix``.

    Raises:
        OutputError: it is there, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OutputError(f"{flag}: {path} exists already. Write the name of a new file, or remove it.") from error
    except OSError as error:
        raise OutputError(f"{flag}: {path} cannot be written: {error.strerror or error}.") from error


@dataclass(frozen=True)
class ResolvedValue:
    """One leaf.

    Attributes:
        key: dotted.
        value: as YAML on one line.
        set_by: file and line, or flag; None for a default.
    """

    key: str
    value: str
    set_by: str | None


@dataclass(frozen=True)
class ResolvedRecipe:
    """What ``recipe.resolved.yaml`` holds.

    Attributes:
        name: of the recipe.
        description: of the recipe.
        values: every leaf, in the order of the sections.
        environment: versions and hardware, as ``hardware.environment`` told them.
    """

    name: str
    description: str
    values: list[ResolvedValue] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)


def read_resolved(path: Path) -> ResolvedRecipe:
    """Read the file again.

    Raises:
        OutputError: it cannot be read, or is no resolved recipe.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    recipe = data.get("recipe") if isinstance(data, dict) else None
    if not isinstance(recipe, dict):
        raise OutputError(f"{path}: holds no recipe; a run writes it when its training starts")
    told, environment = data.get("provenance"), data.get("environment")
    origins = told if isinstance(told, dict) else {}
    leaves = wrap(recipe, Origin("default")).leaves()
    return ResolvedRecipe(
        name=str(recipe.get("name") or ""),
        description=str(recipe.get("description") or ""),
        values=[_value(dotted(keys), node.value, origins) for keys, node in leaves],
        environment=environment if isinstance(environment, dict) else {},
    )


def _value(key: str, value: Any, origins: Mapping[str, Any]) -> ResolvedValue:
    origin = origins.get(key)
    text = dump_yaml([value]).removeprefix("- ").removesuffix("\n")
    return ResolvedValue(key, text, None if origin is None else str(origin))


@dataclass(frozen=True)
class DifferingKey:
    """One key.

    Attributes:
        key: dotted.
        values: recipe by recipe, as YAML on one line; None where a recipe has no such key.
    """

    key: str
    values: list[str | None]


def differing_keys(recipes: Sequence[ResolvedRecipe]) -> list[DifferingKey]:
    """Keys whose values are not all alike, in the order of the first recipe that has them."""
    held = [{value.key: value.value for value in recipe.values} for recipe in recipes]
    found = []
    for key in dict.fromkeys(key for each in held for key in each):
        values = [each.get(key) for each in held]
        if any(value != values[0] for value in values):
            found.append(DifferingKey(key, values))
    return found
