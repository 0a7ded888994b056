"""A recipe file, everything that it extends, and the command line, laid over one another.

The order, lowest first: the files of ``extends`` (in the order written, each after its own ``extends``; a path from
the file's folder, or the name of a shipped recipe or base), the file itself, the command line. Mappings are merged,
lists and scalars are replaced.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.nodes import Node, merge
from hf_efficient.recipe.overrides import apply_overrides
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.shipped_files import SUFFIXES, is_file, near_names, shipped_files, shipped_root
from hf_efficient.recipe.words import any_of, found
from hf_efficient.recipe.yaml_nodes import parse_yaml

__all__ = ["compose", "read_recipe_text"]

LARGEST_FILE_BYTES = 256 * 1024
MOST_FILES = 64


def compose(path: Path, overrides: Sequence[str] = ()) -> tuple[Node, list[Problem]]:
    """The tree of a recipe file with all layers merged, not yet checked against the schema.

    Returns:
        The tree, and the overrides that could not be laid over it (the tree is without them).

    Raises:
        RecipeError: a file that cannot be read, bad YAML, an ``extends`` that is missing or goes in a circle.
            The problems of all files and overrides are reported together.
    """
    reader = _Reader()
    tree = reader.read(path, ())
    if tree is None:
        _, problems = apply_overrides(Node({}, Origin(str(path))), overrides, known=False)
        raise RecipeError([*reader.problems, *problems])
    return apply_overrides(tree, overrides)


class _Reader:
    """Reads files and follows ``extends``; keeps the problems of all files."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._files = 0

    def read(self, path: Path, chain: tuple[Path, ...], said_at: Origin | None = None) -> Node | None:
        """The tree of one file with its bases merged in; None where a problem was found."""
        chain = (*chain, path)
        self._files += 1
        if self._files == MOST_FILES + 1:
            message = f"leads to more than {MOST_FILES} files."
            self._complain(said_at or Origin(str(path)), message, "Extend fewer files.")
        if self._files > MOST_FILES:
            return None
        try:
            tree = _file_tree(path)
        except RecipeError as error:
            problems = error.problems if said_at is None else _missing_base(error, path, chain, said_at)
            self.problems.extend(problems)
            return None
        bases = self._bases(tree, path, chain)
        layers = [base for base in bases if base is not None]
        return functools.reduce(merge, [*layers, tree]) if len(layers) == len(bases) else None

    def _bases(self, tree: Node, path: Path, chain: tuple[Path, ...]) -> list[Node | None]:
        said = tree.value.pop("extends", None)
        if said is None or said.value is None:
            return []
        entries = said.value if isinstance(said.value, list) else [said]
        return [self._base(entry, path, chain) for entry in entries]

    def _base(self, entry: Node, path: Path, chain: tuple[Path, ...]) -> Node | None:
        if not isinstance(entry.value, str) or not entry.value:
            self._complain(entry.origin, "must be a recipe file, the name of a shipped one, or a list of these.", "")
            return None
        base = self._named(entry, path)
        if base is None:
            return None
        if any(_same_file(base, link) for link in chain):
            told = " -> ".join(str(link) for link in (*chain, base))
            self._complain(entry.origin, f"goes in a circle: {told}.", "Remove one of these links.")
            return None
        return self.read(base, chain, entry.origin)

    def _named(self, entry: Node, path: Path) -> Path | None:
        """The file that an entry stands for: a path from the file's folder, else the name of a shipped one."""
        base = Path(os.path.normpath(path.parent / entry.value))
        if Path(entry.value).suffix in SUFFIXES or is_file(base):
            return base
        shipped = shipped_files(shipped_root(), bases=True)
        if entry.value in shipped:
            return shipped[entry.value]
        if _is_there(base):
            return base
        near = near_names(entry.value, shipped)
        message = f"{entry.value} is neither a file ({base}) nor the name of a shipped recipe or base."
        self._complain(entry.origin, message, f"Did you mean {any_of(near)}?" if near else "Check the path.")
        return None

    def _complain(self, origin: Origin, message: str, remedy: str) -> None:
        self.problems.append(Problem(str(origin), "extends", message, remedy))


def read_recipe_text(path: Path) -> str:
    """The text of a recipe file.

    Raises:
        RecipeError: no such file, a folder, unreadable, larger than 256 KiB, or not UTF-8.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise _unreadable(path, "there is no such file.", "Check the path.") from error
    except IsADirectoryError as error:
        raise _unreadable(path, "is a folder.", "Name a recipe file in it.") from error
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _unreadable(path, f"cannot be read: {told}.", "Check the path and its permissions.") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise _unreadable(path, "is larger than 256 KiB, so it is no recipe.", "Name a recipe file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(f"{path}:{line}", "", "is not UTF-8 text.", "Save it as UTF-8.")
        raise RecipeError([problem]) from error


def _file_tree(path: Path) -> Node:
    tree = parse_yaml(read_recipe_text(path), Origin(str(path)))
    if isinstance(tree.value, dict):
        return Node(tree.value, Origin(str(path)))
    held = "is empty" if tree.value is None else f"holds {found(tree.value)}"
    message = f"{held}; a recipe is a mapping of keys to values."
    raise RecipeError([Problem(str(path), "", message, "Start with, for instance, `name: my-run`.")])


def _unreadable(path: Path, message: str, remedy: str) -> RecipeError:
    return RecipeError([Problem(str(path), "", message, remedy)])


def _missing_base(error: RecipeError, path: Path, chain: tuple[Path, ...], said_at: Origin) -> list[Problem]:
    """Problems of a base; where the file itself cannot be read, told at the line that names it."""
    told = " -> ".join(str(link) for link in chain)
    return [
        Problem(str(said_at), "extends", f"{path}: {problem.message} The chain: {told}.", problem.remedy)
        if problem.where == str(path)
        else problem
        for problem in error.problems
    ]


def _is_there(path: Path) -> bool:
    """Whether there is anything, a folder for instance, that a problem can be told of."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
