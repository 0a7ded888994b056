"""A new recipe file, written by a command."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.errors import OutputError
from hf_efficient.recipe.shipped_files import SUFFIXES

__all__ = ["check_new_file", "write_new_file"]


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
