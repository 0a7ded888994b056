"""The recipes that come with the package, by name: ``llama3.1-8b/qlora``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.compose import compose
from hf_efficient.recipe.words import nearest

__all__ = ["ShippedRecipe", "find_recipe", "list_recipes", "shipped_root"]

# Layers to extend and configurations of accelerate: nothing that can be run by itself.
_NOT_RECIPES = frozenset({"bases", "accelerate"})
_SUFFIXES = (".yaml", ".yml")


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


def shipped_root() -> Path:
    """The folder of the shipped recipes: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "shipped_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def list_recipes(root: Path | None = None) -> list[ShippedRecipe]:
    """All shipped recipes in the order of their names; empty where the folder is missing."""
    root = shipped_root() if root is None else root
    return [ShippedRecipe(name, path, _description(path)) for name, path in _files(root).items()]


def find_recipe(name: str | Path, root: Path | None = None) -> Path:
    """The file that ``RECIPE`` stands for: an existing path, or the name of a shipped recipe.

    Raises:
        RecipeError: neither; names the shipped recipe that was probably meant.
    """
    path = Path(name)
    text = str(name)
    if isinstance(name, Path) or path.suffix in _SUFFIXES or _exists_as_file(path):
        return path
    shipped = _files(shipped_root() if root is None else root)
    if text in shipped:
        return shipped[text]
    close = nearest(text, shipped)
    remedy = "`hf-efficient recipes` lists those that are shipped."
    if close is not None:
        remedy = f"Did you mean {close}?"
    message = "is neither a file nor the name of a shipped recipe."
    raise RecipeError([Problem(text, "", message, remedy)])


def _files(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(root.rglob("*.yaml")):
        below = path.relative_to(root)
        if not _NOT_RECIPES & set(below.parts[:-1]):
            found[below.with_suffix("").as_posix()] = path
    return found


def _description(path: Path) -> str:
    try:
        tree, _ = compose(path)
    except RecipeError as error:
        return f"does not resolve: {error.problems[0]}"
    described = tree.child("description")
    return str(described.value) if described is not None else ""


def _exists_as_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
