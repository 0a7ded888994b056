"""A resolved recipe as a table: every value and what set it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hf_efficient.recipe.nodes import dotted, wrap
from hf_efficient.recipe.schema import Origin, Recipe
from hf_efficient.recipe.train_defaults import train_defaults
from hf_efficient.recipe.train_fields import train_versions
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["ExplainedValue", "explained", "explanation_table"]

_LEAST_WIDTH = 80


class ExplainedValue(NamedTuple):
    """One leaf: its dotted key, its value, and the file and line, flag or default that set it."""

    key: str
    value: Any
    set_by: str


def explained(recipe: Recipe) -> list[ExplainedValue]:
    """Every value of a recipe in the order of the sections; below ``train``, what is set goes before the defaults."""
    rows: dict[str, list[ExplainedValue]] = {section: [] for section in type(recipe).model_fields}
    for key, value in _leaves(recipe.resolved()):
        rows[key.partition(".")[0]].append(ExplainedValue(key, value, _told(recipe.provenance[key])))
    if not recipe.train:
        rows["train"].clear()
    told = f"default of trl {train_versions()['trl']}"
    rows["train"] += [ExplainedValue(key, value, told) for key, value in _leaves({"train": train_defaults(recipe)})]
    return [row for of_section in rows.values() for row in of_section]


def _leaves(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((dotted(path), node.value) for path, node in wrap(data, Origin("default")).leaves())


def explanation_table(rows: list[ExplainedValue], width: int | None = None) -> str:
    """The rows in aligned columns; what does not fit ``width`` (default: the terminal's) is folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for title in ("key", "value", "set by"):
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in (row.key, _shown(row.value), row.set_by)))
    console = Console(width=max(width or shutil.get_terminal_size((120, 24)).columns, _LEAST_WIDTH), no_color=True)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _shown(value: Any) -> str:
    """The value as YAML on one line."""
    return dump_yaml([value]).removeprefix("- ").removesuffix("\n")


def _told(origin: Origin) -> str:
    """The origin, with a path below the current directory told from there."""
    if origin.line is None:
        return str(origin)
    path = Path(origin.source)
    try:
        path = path.relative_to(Path.cwd()) if path.is_absolute() else path
    except ValueError:
        path = Path(os.path.normpath(path))
    return f"{path}:{origin.line}"
