"""What commands share: arguments that mean the same everywhere, JSON, and files that they write."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from hf_efficient.errors import OutputError


def _recipe_names(incomplete: str) -> list[str]:
    from hf_efficient.recipe.files import list_recipes

    shipped = [one.name for one in list_recipes() if one.name.startswith(incomplete)]
    found = Path().glob(f"{incomplete}*")
    return shipped + [f"{one}/" if one.is_dir() else str(one) for one in found if one.is_dir() or one.suffix == ".yaml"]


def gpu_names(incomplete: str) -> list[str]:
    from hf_efficient.facts.accelerators import accelerators

    return [one.name for one in accelerators() if one.name.lower().startswith(incomplete.lower())]


RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.", autocompletion=_recipe_names),
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")]
_REMEDY = "name a file in a folder that is there and can be written"


_answers: TextIO | None = None
"""Where JSON goes while ``json_alone`` keeps everything else off standard output."""


@contextmanager
def json_alone(wanted: bool) -> Iterator[None]:
    """Keep standard output for ``print_json`` alone: prints of libraries, of C code and of child processes, in the
    block, go to standard error."""
    global _answers
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept, error = _descriptor(sys.stdout), _descriptor(sys.stderr)
    if kept is None or error is None:
        _answers = sys.stdout
    else:
        _answers = os.fdopen(os.dup(kept), "w", encoding="utf-8")
        os.dup2(error, kept)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if _answers is not sys.stdout and kept is not None:
            os.dup2(_answers.fileno(), kept)
            with suppress(BrokenPipeError):
                _answers.close()
        _answers = None


def _descriptor(stream: TextIO) -> int | None:
    """None for a stream that stands for no file, as in a test."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def print_json(data: Any) -> None:
    """Print data, or text that is JSON already."""
    text = data if isinstance(data, str) else json.dumps(data, indent=2)
    print(text.rstrip("\n"), file=_answers, flush=True)


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
    """Write a page, and print where it is to ``told_to`` (default: standard output). ``named`` is the user's choice, or
    ``OutputError``; None: at ``default``, or nowhere where that cannot be written."""
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
