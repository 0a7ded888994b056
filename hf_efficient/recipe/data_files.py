"""Local files that the sources of a recipe name, looked for without reading them."""

import difflib
import os
from pathlib import Path

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.schema import Recipe

_READ = (".csv", ".json", ".jsonl", ".ndjson", ".parquet")
_SUFFIXES = (*_READ, ".arrow", ".gz", ".tsv", ".txt", ".xlsx", ".yaml", ".yml", ".zip", ".zst")


def check_data_files(recipe: Recipe) -> None:
    """Refuse, with ``RecipeError``, a recipe whose sources name local files that are missing."""
    problems = []
    for split, sources in (("train", recipe.data.train), ("eval", recipe.data.eval)):
        for index, source in enumerate(sources):
            key, fault = f"data.{split}.{index}.path", missing_file(source.path)
            if fault is not None:
                problems.append(Problem(str(recipe.provenance.get(key, "")), key, *fault))
    if problems:
        raise RecipeError(problems)


def missing_file(name: str) -> tuple[str, str] | None:
    """What is wrong with the ``path`` of a source that names a missing local file, and the nearest one; None where it
    is there, or names a builtin or a data set of the hub."""
    try:
        path = Path(name).expanduser()
        if name.startswith("builtin:") or path.exists():
            return None
        if path.is_symlink():
            return f"{name} is a symbolic link to a missing file: {path.readlink()}.", ""
        return (f"no such file: {name}.", _nearest(path)) if looks_local(name) else None
    except (OSError, RuntimeError):  # reading it says why
        return None


def looks_local(name: str) -> bool:
    """Hub names are ``name`` or ``owner/name``; what cannot be one, or has a file's suffix, is a path."""
    path = Path(name)
    return (
        name.startswith((".", "~", os.sep))
        or path.suffix.lower() in _SUFFIXES
        or len(path.parts) > 2
        or "\\" in name
        or name.endswith("/")
        or (len(path.parts) == 2 and path.parent.is_dir())
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    return f"Nearest in {path.parent}: {near[0]}." if near else ""
