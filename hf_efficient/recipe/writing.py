"""Recipes written and read back: YAML, new files, and the resolved recipe in a run directory."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hf_efficient.errors import OutputError, writing
from hf_efficient.recipe.files import SUFFIXES, shipped_files, shipped_root
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.tree import flat, read_scalar


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever either version of YAML would misread it, and no aliases."""

    long_text: str | None = None

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        style = _style(text) or (self.long_text if "\n" in text else None)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


class _BlockDumper(_Dumper):
    long_text = "|"


def _style(text: str) -> str | None:
    """The quotes that a text needs; None leaves it to PyYAML, which knows YAML 1.1 and the indicators."""
    # Only an escape keeps these apart from a line feed.
    if any(character in text for character in "\r\x85\u2028\u2029"):
        return '"'
    try:
        return None if isinstance(read_scalar(text), str) else "'"
    except ValueError:
        return "'"


def dump_yaml(data: Any, *, blocks: bool = False) -> str:
    """Plain data as YAML that YAML 1.1 and 1.2 read alike; with ``blocks``, long text line by line (``|``)."""
    dumper = _BlockDumper if blocks else _Dumper
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)


def rendered(template: Path, **values: Any) -> str:
    """A text file from a template beside the code that writes it; its filter ``yaml`` writes a value on one line."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    environment.filters["yaml"] = lambda value: yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )[1:-2]
    return environment.get_template(template.name).render(values)


def check_new_file(path: Path, flag: str, force: bool | None = None) -> None:
    """``OutputError``: it exists, has no folder, or no recipe's name. ``force`` None: there is no flag ``--force``."""
    if path.suffix not in SUFFIXES:
        raise OutputError(f"{flag}: {path} is not named like a recipe. Write a name that ends in .yaml.")
    if path.is_dir() or ((path.exists() or path.is_symlink()) and not force):
        otherwise = "remove it" if force is None else "add --force to overwrite it"
        raise OutputError(f"{flag}: {path} exists already. Write the name of a new file, or {otherwise}.")
    if not path.parent.is_dir():
        raise OutputError(f"{flag}: there is no folder {path.parent}. Make it, or write the name of a file elsewhere.")


def write_new_file(path: Path, text: str, flag: str, force: bool = False) -> None:
    """Write a file named by ``flag``; ``OutputError`` where it is there, without ``force``, or cannot be written."""
    with writing(flag, path), path.open("w" if force else "x", encoding="utf-8") as file:
        file.write(text)


def fixed_recipe(
    recipe: Recipe, overrides: Mapping[str, Any], path: Path, remark: str, comments: Mapping[str, str] | None = None
) -> str:
    """A recipe that extends another one, command line included; ``comments`` stand behind the lines of their keys."""
    assert recipe.path is not None
    values: dict[str, Any] = {"extends": _name_of(recipe.path, path.parent)}
    flags = (key for key, origin in recipe.provenance.items() if origin.source == "command line")
    for key, value in {**whole_values(recipe.model_dump(), flags), **overrides}.items():
        put_nested(values, key, value)
    return f"# {remark}\n{_commented(dump_yaml(values), comments or {})}"


def _commented(text: str, comments: Mapping[str, str]) -> str:
    lines, path = [], list[str]()
    for line in text.splitlines():
        name = line.lstrip(" ")
        path[(len(line) - len(name)) // 2 :] = [name.partition(":")[0]]
        said = comments.get(".".join(path))
        lines.append(f"{line}  # {said}" if said else line)
    return "\n".join(lines) + "\n"


def put_nested(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    held = values.get(last)
    values[last] = {**held, **value} if isinstance(held, dict) and isinstance(value, dict) else value


def _name_of(original: Path, folder: Path) -> str:
    whole = original.resolve()
    for name, shipped in shipped_files(shipped_root()).items():
        if shipped.resolve() == whole:
            return name
    return Path(os.path.relpath(whole, folder.resolve())).as_posix()


def whole_values(recipe: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """What the keys of leaves hold, by dotted key; a list as a whole, which is how a recipe replaces it."""
    found: dict[str, Any] = {}
    for key in keys:
        value: Any = recipe
        parts: list[str] = []
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
            parts.append(part)
        if parts:
            found[".".join(parts)] = value
    return found


class ResolvedValue(NamedTuple):
    """One leaf: its dotted key, its value as YAML on one line, and the file and line, or flag, that set it."""

    key: str
    value: str
    set_by: str | None


@dataclass(frozen=True)
class ResolvedRecipe:
    """What ``recipe.resolved.yaml`` holds: every leaf, and the versions and hardware that the run had."""

    name: str
    description: str
    values: list[ResolvedValue] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)


def resolved_parts(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Recipe, provenance and environment that a run has written; ``OutputError``: unreadable, or no resolved recipe."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    held = data if isinstance(data, dict) else {}
    recipe, origins, environment = (
        part if isinstance(part, dict) else {} for part in map(held.get, ("recipe", "provenance", "environment"))
    )
    if not recipe:
        raise OutputError(f"{path}: holds no recipe; a run writes it when its training starts")
    return recipe, origins, environment


def read_resolved(path: Path) -> ResolvedRecipe:
    """The same as rows; raises as ``resolved_parts``."""
    recipe, origins, environment = resolved_parts(path)
    return ResolvedRecipe(
        name=str(recipe.get("name") or ""),
        description=str(recipe.get("description") or ""),
        values=[
            ResolvedValue(key, dump_yaml([value])[2:-1], str(origins[key]) if origins.get(key) is not None else None)
            for key, value in flat(recipe).items()
        ],
        environment=environment,
    )


def differing_keys(recipes: Sequence[ResolvedRecipe]) -> dict[str, list[str | None]]:
    """Keys whose values are not all alike, with these recipe by recipe; None where one has no such key."""
    held = [{value.key: value.value for value in recipe.values} for recipe in recipes]
    rows = {key: [each.get(key) for each in held] for key in dict.fromkeys(key for each in held for key in each)}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}
