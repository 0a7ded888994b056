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
    named = {f"data.train.{index}.path": source.path for index, source in enumerate(recipe.data.train)}
    named |= {f"data.eval.{index}.path": source.path for index, source in enumerate(recipe.data.eval)}
    faults = {key: fault for key, path in named.items() if (fault := missing_file(path)) is not None}
    problems = [Problem(str(recipe.provenance.get(key, "")), key, *fault) for key, fault in faults.items()]
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
    is_path = name.startswith((".", "~", os.sep)) or name.endswith("/") or "\\" in name or len(path.parts) > 2
    return is_path or path.suffix.lower() in _SUFFIXES or (len(path.parts) == 2 and path.parent.is_dir())


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    return f"Nearest in {path.parent}: {near[0]}." if near else ""
