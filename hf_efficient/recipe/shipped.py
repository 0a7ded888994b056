"""The recipes that come with the package, by name: ``llama3.1-8b/qlora``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.compose import compose
from hf_efficient.recipe.shipped_files import SUFFIXES, is_file, near_names, shipped_files, shipped_root
from hf_efficient.recipe.words import any_of

__all__ = ["ShippedRecipe", "find_recipe", "list_recipes"]


@dataclass(frozen=True)
class ShippedRecipe:
    """One recipe of the list.

    Attributes:
        name: path below the root without suffix, with forward slashes.
        path: the file.
        description: the recipe's own line; what is wrong with it where it does not resolve.
    """

    name: str
    path: Path
    description: str


def list_recipes(root: Path | None = None) -> list[ShippedRecipe]:
    """All shipped recipes in the order of their names; empty where the folder is missing."""
    root = shipped_root() if root is None else root
    return [ShippedRecipe(name, path, _description(path)) for name, path in shipped_files(root).items()]


def find_recipe(name: str | Path, root: Path | None = None) -> Path:
    """The file that ``RECIPE`` stands for: an existing path, or the name of a shipped recipe.

    Raises:
        RecipeError: neither; names the shipped recipes that were probably meant.
    """
    path = Path(name)
    text = str(name)
    if isinstance(name, Path) or path.suffix in SUFFIXES or is_file(path):
        return path
    shipped = shipped_files(shipped_root() if root is None else root)
    if text in shipped:
        return shipped[text]
    close = near_names(text, shipped)
    remedy = f"Did you mean {any_of(close)}?" if close else "`hf-efficient recipes` lists those that are shipped."
    message = "is neither a file nor the name of a shipped recipe."
    raise RecipeError([Problem(text, "", message, remedy)])


def _description(path: Path) -> str:
    try:
        tree, _ = compose(path)
    except RecipeError as error:
        return f"does not resolve: {error.problems[0]}"
    described = tree.child("description")
    return str(described.value) if described is not None else ""
