"""Recipe files: the shipped ones by name, and a file, everything that it extends and the command line as one tree.

The layers, lowest first: the files of ``extends`` (in the order written, each after its own ``extends``; paths from the
file's folder, or shipped names), the file itself, the command line. Mappings are merged, lists and scalars replaced.
"""

import functools
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.forms import own_path, with_own_evaluation, written_out
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import Node, any_of, found, merge, nearest, parse_yaml

SUFFIXES = (".yaml", ".yml")
_BASES = "bases"  # layers to extend: nothing that can be run by itself
_OTHER = "accelerate"  # configurations of accelerate are no recipes at all
_MOST_NEAR = 5
_LARGEST_FILE_BYTES = 256 * 1024

_KEY = re.compile(r"[^\s.=]+(\.[^\s.=]+)*\Z")
_FORM = "Write key=value, for instance train.learning_rate=1e-4 or data.train.0.path=chats.jsonl."


class ShippedRecipe(NamedTuple):
    name: str
    path: Path
    description: str


def shipped_root() -> Path:
    """The folder of the shipped recipes: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "shipped_recipes"
    return installed if installed.is_dir() else package.parent / "recipes"


def shipped_files(root: Path, *, bases: bool = False) -> dict[str, Path]:
    """Name (``llama3.1-8b/qlora``) to file, in the order of the names; with ``bases`` those that are only extended."""
    files = {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}
    hidden = {_OTHER} if bases else {_OTHER, _BASES}
    return {name: path for name, path in files.items() if hidden.isdisjoint(name.split("/")[:-1])}


@dataclass(frozen=True)
class ShippedPlan:
    """What a shipped recipe needs, as planned by ``docs/generate.py`` with full rows; all figures are estimates.

    Attributes:
        gpu: of those that it fits, the one with the lowest list price per token; None where it fits none.
        tensors_gib, needed_gib: of one GPU: the peak of allocated memory, and with the allocator's cache and CUDA's.
        tokens_per_second: of all GPUs; None where the rate of an operator is not known.
        gated: whether the hub asks for consent before it hands out the weights.
    """

    recipe: str
    model: str
    method: str
    row_tokens: int
    micro_batch: int
    gpus: int
    gpu: str | None
    tensors_gib: float
    needed_gib: float
    tokens_per_second: float | None
    licence: str | None
    gated: bool | None
    fingerprint: str  # of the recipe that was planned, by docs/generate.py


def shipped_plans(root: Path | None = None) -> dict[str, ShippedPlan]:
    """By the name of the recipe, in the order of the names; none where the file is missing."""
    file = (shipped_root() if root is None else root) / "plans.json"
    held = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return {row["recipe"]: ShippedPlan(**row) for row in held}


def list_recipes(root: Path | None = None) -> list[ShippedRecipe]:
    files = shipped_files(shipped_root() if root is None else root)
    described = {name: compose(path)[0].child("description") for name, path in files.items()}
    return [ShippedRecipe(name, files[name], str(node.value) if node else "") for name, node in described.items()]


def name_of_file(path: Path) -> str:
    """What a recipe without a ``name`` is called: as its file, a shipped one with its folder before that."""
    whole, root = path.resolve(), shipped_root().resolve()
    shipped = whole.relative_to(root) if whole.is_relative_to(root) else Path(path.name)
    return "-".join(shipped.with_suffix("").parts)


def find_recipe(name: str | Path, root: Path | None = None) -> Path:
    """The file that ``RECIPE`` stands for: a path, or the name of a shipped recipe; ``RecipeError`` for neither."""
    path, text = Path(name), str(name)
    if isinstance(name, Path) or path.suffix in SUFFIXES or _is_file(path):
        return path
    shipped = shipped_files(shipped_root() if root is None else root)
    if text in shipped:
        return shipped[text]
    close = near_names(text, shipped)
    remedy = f"Did you mean {any_of(close)}?" if close else "`hf-efficient recipes` lists those that are shipped."
    message = "is neither a file nor the name of a shipped recipe."
    raise RecipeError([Problem(text, "", message, remedy)])


def near_names(text: str, names: Iterable[str]) -> list[str]:
    """The names that ``text`` was probably meant to be: all that share the part it is close to, else the nearest."""
    valid = sorted(names)
    part = None if "/" in text else nearest(text, {part for name in valid for part in name.split("/")})
    if part is None:
        close = nearest(text, valid)
        return [close] if close is not None else []
    # The quickstart first: it runs anywhere.
    near = sorted((name for name in valid if part in name.split("/")), key=lambda name: "quickstart" not in name)
    return near[:_MOST_NEAR]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # what can be no path
        return False


def compose(path: Path, overrides: Sequence[str] = ()) -> tuple[Node, list[Problem]]:
    """The unchecked tree of a recipe file with all layers merged, and what is wrong with the overrides. Raises
    ``RecipeError``: an unreadable file, bad YAML, a missing or circular ``extends``; with all problems together."""
    reader = _Reader()
    tree = reader.read(path, ())
    if tree is None:
        _, problems = apply_overrides(None, overrides)
        raise RecipeError([*reader.problems, *problems])
    return apply_overrides(tree, overrides)


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def read(self, path: Path, chain: tuple[Path, ...], said_at: Origin | None = None) -> Node | None:
        """The tree of one file with its bases merged in; None where a problem was found."""
        chain = (*chain, path)
        try:
            tree = written_out(file_tree(path, "a recipe", "name: my-run"))
        except RecipeError as error:
            problems = error.problems if said_at is None else _missing_base(error, path, chain, said_at)
            self.problems.extend(problems)
            return None
        said = tree.value.pop("extends", None)
        entries = [] if said is None or said.value is None else said.value if isinstance(said.value, list) else [said]
        bases = [self._base(entry, path, chain) for entry in entries]
        layers = [base for base in bases if base is not None]
        if len(layers) < len(bases):
            return None
        return functools.reduce(lambda below, above: with_own_evaluation(below, merge(below, above)), [*layers, tree])

    def _base(self, entry: Node, path: Path, chain: tuple[Path, ...]) -> Node | None:
        if not isinstance(entry.value, str) or not entry.value:
            self._complain(entry.origin, "must be a recipe file, the name of a shipped one, or a list of these.", "")
            return None
        base = self._named(entry, path)
        if base is None:
            return None
        if os.path.realpath(base) in map(os.path.realpath, chain):
            links = " -> ".join(str(link) for link in (*chain, base))
            self._complain(entry.origin, f"goes in a circle: {links}.", "Remove one of these links.")
            return None
        return self.read(base, chain, entry.origin)

    def _named(self, entry: Node, path: Path) -> Path | None:
        """The file that an entry stands for: a path from the file's folder, else the name of a shipped one."""
        base = Path(os.path.normpath(path.parent / entry.value))
        if Path(entry.value).suffix in SUFFIXES or _is_file(base):
            return base
        shipped = shipped_files(shipped_root(), bases=True)
        if entry.value in shipped:
            return shipped[entry.value]
        if os.path.lexists(base):  # a folder, for instance: the reader says so
            return base
        near = near_names(entry.value, shipped)
        message = f"{entry.value} is neither a file ({base}) nor the name of a shipped recipe or base."
        self._complain(entry.origin, message, f"Did you mean {any_of(near)}?" if near else "Check the path.")
        return None

    def _complain(self, origin: Origin, message: str, remedy: str) -> None:
        self.problems.append(Problem(str(origin), "extends", message, remedy))


def _missing_base(error: RecipeError, path: Path, chain: tuple[Path, ...], said_at: Origin) -> list[Problem]:
    """Problems of a base; where the file itself cannot be read, reported at the line that names it."""
    links = " -> ".join(str(link) for link in chain)
    return [
        Problem(str(said_at), "extends", f"{path}: {one.message} The chain: {links}.", one.remedy)
        if one.where == str(path)
        else one
        for one in error.problems
    ]


def file_tree(path: Path, kind: str, example: str) -> Node:
    tree = parse_yaml(read_recipe_text(path), Origin(str(path)))
    if isinstance(tree.value, dict):
        return Node(tree.value, Origin(str(path)))
    held = "is empty" if tree.value is None else f"holds {found(tree.value)}"
    message = f"{held}; {kind} is a mapping of keys to values."
    raise RecipeError([Problem(str(path), "", message, f"Start with, for instance, `{example}`.")])


def read_recipe_text(path: Path) -> str:
    """The text of a recipe file; ``RecipeError``: missing, unreadable, a folder, over 256 KiB, or no UTF-8."""

    def unreadable(message: str, remedy: str, line: str = "") -> RecipeError:
        return RecipeError([Problem(f"{path}{line}", "", message, remedy)])

    if path.is_fifo():
        raise unreadable("is a pipe, which can be read once.", "Name a recipe file.")
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise unreadable("there is no such file.", "Check the path.") from error
    except IsADirectoryError as error:
        raise unreadable("is a folder.", "Name a recipe file in it.") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise unreadable(f"cannot be read: {why}.", "Check the path and its permissions.") from error
    if len(data) > _LARGEST_FILE_BYTES:
        raise unreadable("is larger than 256 KiB, so it is no recipe.", "Name a recipe file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise unreadable("is not UTF-8 text.", "Save it as UTF-8.", f":{line}") from error


def apply_overrides(tree: Node | None, overrides: Sequence[str]) -> tuple[Node, list[Problem]]:
    """Lay ``a.b=value`` flags over a copy of a tree, in order; returns it, and what is wrong with the flags. The value
    is YAML; a mapping is merged, anything else replaces. A number in the key is an index where the tree has a list; the
    index after the last appends. Without a tree (None), only the form is checked."""
    result = tree or Node({}, Origin("command line"))
    problems: list[Problem] = []
    for flag in overrides:
        try:
            key, value = _split(flag, Origin("command line", None, flag))
            if tree is not None:
                path = tuple(key.split("."))
                result = _set(result, [str(part) for part in own_path(path)], written_out(value, path), 0)
        except RecipeError as error:
            problems.extend(error.problems)
    return (result if tree is None else with_own_evaluation(tree, result)), problems


def _split(flag: str, origin: Origin) -> tuple[str, Node]:
    key, equals, text = flag.partition("=")
    if not equals or not _KEY.match(key):
        raise _refused(origin, "", "is no override.", _FORM)
    if key == "extends" or key.startswith("extends."):
        message = "can only be written in a recipe file."
        raise _refused(origin, "extends", message, "Override the values themselves.")
    return key, parse_yaml(text, origin)


def _set(node: Node | None, parts: list[str], value: Node, depth: int) -> Node:
    """``node`` with ``value`` laid at ``parts[depth:]`` below it; containers that are missing are made."""
    if depth == len(parts):
        return value if node is None else merge(node, value)
    part = parts[depth]
    held = None if node is None else node.value
    origin = value.origin if node is None or held is None else node.origin
    if isinstance(held, list) or (held is None and part == "0"):
        return Node(_set_in_list(held or [], parts, value, depth), origin if held else value.origin)
    if held is not None and not isinstance(held, dict):
        message = "holds a single value, so nothing can be set below it."
        raise _refused(value.origin, ".".join(parts[:depth]), message, _FORM)
    entries = dict(held or {})
    entries[part] = _set(entries.get(part), parts, value, depth + 1)
    return Node(entries, origin)


def _set_in_list(held: list[Node], parts: list[str], value: Node, depth: int) -> list[Node]:
    items, part = list(held), parts[depth]
    # isdecimal alone accepts digits of every script, and int() refuses very long ones.
    index = int(part) if re.fullmatch(r"[0-9]{1,6}", part) else -1
    if not 0 <= index <= len(items):
        remedy = f"Write an index from 0 to {len(items)} ({len(items)} appends)."
        message = f"is a list of {len(items)}, which has no entry {part}."
        raise _refused(value.origin, ".".join(parts[:depth]), message, remedy)
    items[index : index + 1] = [_set(items[index] if index < len(items) else None, parts, value, depth + 1)]
    return items


def _refused(origin: Origin, key: str, message: str, remedy: str) -> RecipeError:
    return RecipeError([Problem(str(origin), key, message, remedy)])
