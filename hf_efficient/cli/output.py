"""What commands share: arguments that mean the same everywhere, JSON, and files that they write."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from hf_efficient.errors import OutputError

RecipeArgument = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")]
_REMEDY = "name a file in a folder that is there and can be written"


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def write_text(flag: str, path: Path, text: str) -> None:
    """Write a file that a flag names; ``OutputError`` where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        told = f"{flag}: {path} cannot be written: {error.strerror or error}."
        raise OutputError(f"{told} Name a file in a folder that exists.") from error


def check_page_file(path: Path) -> None:
    """Refuse a page's file before long work: ``OutputError`` for a missing folder, or a name that is taken."""
    path = path.expanduser()
    if path.is_dir():
        raise OutputError(f"--html: {path} is a folder; {_REMEDY}")
    if not path.parent.is_dir():
        raise OutputError(f"--html: there is no folder {path.parent}; {_REMEDY}")


def write_page(named: Path | None, default: Path, make: Callable[[], str], told_to: TextIO | None = None) -> None:
    """Write a page, over one that is there, and say where it is on ``told_to`` (default: standard output). ``named`` is
    where the user wants it; None: at ``default``, or nowhere where that cannot be written. Raises ``OutputError``:
    ``named`` cannot be written."""
    from hf_efficient.run_dir.json_file import write_whole

    path = named.expanduser() if named is not None else default
    try:
        write_whole(path, make())
    except OSError as error:
        told = f"{path} cannot be written: {error.strerror or error}"
        if named is not None:
            raise OutputError(f"--html: {told}; {_REMEDY}") from error
        print(f"{told}; --html FILE puts the page elsewhere.", file=sys.stderr)
        return
    print(f"The page is {path}", file=told_to)
