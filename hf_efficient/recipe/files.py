"""Where the shipped recipes lie, and by which names they and their bases are meant.

``a.b=value`` on the command line: one more layer over the recipe's files.

A recipe file, everything that it extends, and the command line, laid over one another.

The order, lowest first: the files of ``extends`` (in the order written, each after its own ``extends``; a path from
the file's folder, or the name of a shipped recipe or base), the file itself, the command line. Mappings are merged,
lists and scalars are replaced.

The recipes that come with the package, by name: ``llama3.1-8b/qlora``.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import NESTING_LIMIT, Node, any_of, found, merge, nearest, parse_yaml

SUFFIXES = (".yaml", ".yml")
# Layers to extend: nothing that can be run by itself.
_BASES = "bases"
# Configurations of accelerate are no recipes at all.
_OTHER = "accelerate"
_MOST_NEAR = 5


def shipped_root() -> Path:
    """The folder of the shipped recipes: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "shipped_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def shipped_files(root: Path, *, bases: bool = False) -> dict[str, Path]:
    """Name (``llama3.1-8b/qlora``) to file, in the order of the names.

    Args:
        root: the folder; there are none where it is missing.
        bases: also those that can only be extended (``bases/qlora``).
    """
    found = {}
    for path in sorted(root.rglob("*.yaml")):
        below = path.relative_to(root)
        if _OTHER not in below.parts[:-1] and (bases or _BASES not in below.parts[:-1]):
            found[below.with_suffix("").as_posix()] = path
    return found


def near_names(text: str, names: Iterable[str]) -> list[str]:
    """The names that ``text`` was probably meant to be: all that share the part it is close to, else the nearest."""
    valid = sorted(names)
    part = None if "/" in text else nearest(text, {part for name in valid for part in name.split("/")})
    if part is None:
        close = nearest(text, valid)
        return [close] if close is not None else []
    # The quickstart first: it runs anywhere.
    found = sorted((name for name in valid if part in name.split("/")), key=lambda name: "quickstart" not in name)
    return found[:_MOST_NEAR]


def is_file(path: Path) -> bool:
    """``path.is_file()``, and False for what can be no path."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


_KEY = re.compile(r"[^\s.=]+(\.[^\s.=]+)*\Z")
_FORM = "Write key=value, for instance train.learning_rate=1e-4 or data.train.0.path=chats.jsonl."


def apply_overrides(tree: Node, overrides: Sequence[str], *, known: bool = True) -> tuple[Node, list[Problem]]:
    """Lay overrides over a tree, in order.

    Args:
        tree: the recipe below; it is not changed.
        overrides: flags as typed. The value is YAML; a mapping is merged, anything else replaces it.
            A number in the key is an index where the tree has a list; the index after the last appends.
        known: False where the tree could not be read: only the form of the flags is checked then.

    Returns:
        The new tree, and what is wrong with the flags.
    """
    problems: list[Problem] = []
    for flag in overrides:
        origin = Origin("command line", None, flag)
        try:
            key, value = _split(flag, origin)
            if known:
                tree = _set(tree, key.split("."), value, 0)
        except RecipeError as error:
            problems.extend(error.problems)
    return tree, problems


def _split(flag: str, origin: Origin) -> tuple[str, Node]:
    key, equals, text = flag.partition("=")
    if not equals or not _KEY.match(key):
        raise _refused(origin, "", "is no override.", _FORM)
    if key.count(".") >= NESTING_LIMIT:
        raise _refused(origin, "", f"is nested more than {NESTING_LIMIT} levels deep.", "")
    if key == "extends" or key.startswith("extends."):
        message = "can only be written in a recipe file."
        raise _refused(origin, "extends", message, "Override the values themselves.")
    return key, parse_yaml(text, origin)


def _set(node: Node | None, parts: list[str], value: Node, depth: int) -> Node:
    """``node`` with ``value`` laid at ``parts[depth:]`` below it; containers that are missing are made."""
    if depth == len(parts):
        return value if node is None else merge(node, value)
    part = parts[depth]
    is_list = node is not None and isinstance(node.value, list)
    missing = node is None or node.value is None
    if is_list or (missing and part == "0"):
        return _set_in_list(node, parts, value, depth)
    if not missing and not isinstance(node.value, dict):  # type: ignore[union-attr]
        held = ".".join(parts[:depth])
        raise _refused(value.origin, held, "holds a single value, so nothing can be set below it.", _FORM)
    entries = {} if missing else dict(node.value)  # type: ignore[union-attr]
    entries[part] = _set(entries.get(part), parts, value, depth + 1)
    return Node(entries, value.origin if node is None or missing else node.origin)


def _set_in_list(node: Node | None, parts: list[str], value: Node, depth: int) -> Node:
    items = list(node.value) if node is not None and node.value is not None else []
    part = parts[depth]
    # isdecimal alone accepts digits of every script, and int() refuses very long ones.
    index = int(part) if re.fullmatch(r"[0-9]{1,6}", part) else -1
    if not 0 <= index <= len(items):
        held = ".".join(parts[:depth])
        remedy = f"Write an index from 0 to {len(items)} ({len(items)} appends)."
        raise _refused(value.origin, held, f"is a list of {len(items)}, which has no entry {part}.", remedy)
    below = _set(items[index] if index < len(items) else None, parts, value, depth + 1)
    items[index : index + 1] = [below]
    return Node(items, node.origin if node is not None and items else value.origin)


def _refused(origin: Origin, key: str, message: str, remedy: str) -> RecipeError:
    return RecipeError([Problem(str(origin), key, message, remedy)])


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
