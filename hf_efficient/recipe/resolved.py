"""The recipe as a run has written it down: every value, who set it, and what it ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.recipe.nodes import dotted, wrap
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["ResolvedRecipe", "ResolvedValue", "read_resolved"]


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
