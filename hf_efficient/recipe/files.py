"""Recipe files: the shipped ones by name, and a file, everything that it extends and the command line as one tree.

The layers, lowest first: the files of ``extends`` (in the order written, each after its own ``extends``; paths from the
file's folder, or shipped names), the file itself, the command line. Mappings are merged, lists and scalars replaced.

Layers may be written in short forms; evaluation data goes with its training data.
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
from hf_efficient.recipe.schema import DERIVED, Origin
from hf_efficient.recipe.tree import KeyPath, Node, any_of, found, merge, nearest, parse_yaml

SUFFIXES = (".yaml", ".yml")
_BASES = "bases"  # layers to extend: nothing that can be run by itself
_OTHER = "accelerate"  # configurations of accelerate are no recipes at all
_MOST_NEAR = 5
_LARGEST_FILE_BYTES = 256 * 1024

_KEY = re.compile(r"[^\s.=]+(\.[^\s.=]+)*\Z")
_FORM = "Write key=value, for instance train.learning_rate=1e-4 or data.train.0.path=chats.jsonl."

ALIASES: dict[KeyPath, str] = {
    ("adapter", "lora_alpha"): "alpha",
    ("adapter", "lora_dropout"): "dropout",
    ("adapter", "use_dora"): "dora",
    ("adapter", "use_rslora"): "rslora",
}
"""PEFT's own names of a key."""

_TEXT: dict[KeyPath, str] = {("model",): "id", ("data",): "train", ("distill", "teacher"): "id"}
"""Sections that may be one text: the key that it stands for."""

_PIPELINE: KeyPath = ("data", "pipeline")
_CLASSIFIER: KeyPath = (*_PIPELINE, "quality", "classifier")
_SOURCES: tuple[KeyPath, ...] = (
    ("data", "train"), ("data", "eval"), (*_PIPELINE, "contamination", "against"), (*_CLASSIFIER, "good"),
    (*_CLASSIFIER, "bad"),
)  # fmt: skip
_REWARDS: KeyPath = ("rewards",)
_HELD_OUT = 0.05


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
    if isinstance(name, Path) or path.suffix in SUFFIXES or os.path.isfile(path):  # noqa: PTH113  odd names
        return path
    shipped = shipped_files(shipped_root() if root is None else root)
    if text in shipped:
        return shipped[text]
    close = near_names(text, shipped)
    remedy = f"Did you mean {any_of(close)}?" if close else "`hf-efficient recipes` lists those that are shipped."
    raise refused(text, "", "is neither a file nor the name of a shipped recipe.", remedy)


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


def compose(path: Path, overrides: Sequence[str] = ()) -> tuple[Node, list[Problem]]:
    """The unchecked tree of a recipe file with all layers merged, and what is wrong with the overrides. Raises
    ``RecipeError``: an unreadable file, bad YAML, a missing or circular ``extends``; with all problems together."""
    problems: list[Problem] = []
    tree = _read(path, (), problems)
    if tree is None:
        raise RecipeError([*problems, *apply_overrides(None, overrides)[1]])
    return apply_overrides(tree, overrides)


def _read(path: Path, chain: tuple[Path, ...], problems: list[Problem], said_at: Origin | None = None) -> Node | None:
    """The tree of one file with its bases merged in; None where a problem was found."""
    chain = (*chain, path)
    try:
        tree = written_out(file_tree(path, "a recipe", "name: my-run"))
    except RecipeError as error:
        problems.extend(error.problems if said_at is None else _missing_base(error, path, chain, said_at))
        return None
    said = tree.value.pop("extends", None)
    entries = [] if said is None or said.value is None else said.value if isinstance(said.value, list) else [said]
    layers = [base for entry in entries if (base := _base(entry, path, chain, problems)) is not None]
    if len(layers) < len(entries):
        return None
    return functools.reduce(lambda below, above: with_own_evaluation(below, merge(below, above)), [*layers, tree])


def _base(entry: Node, path: Path, chain: tuple[Path, ...], problems: list[Problem]) -> Node | None:
    try:
        base = _named(entry, path)
        if os.path.realpath(base) in map(os.path.realpath, chain):
            links = " -> ".join(str(link) for link in (*chain, base))
            raise refused(entry.origin, "extends", f"goes in a circle: {links}.", "Remove one of these links.")
    except RecipeError as error:
        problems.extend(error.problems)
        return None
    return _read(base, chain, problems, entry.origin)


def _named(entry: Node, path: Path) -> Path:
    """The file that an entry stands for: a path from the file's folder, else the name of a shipped one."""
    if not isinstance(entry.value, str) or not entry.value:
        message = "must be a recipe file, the name of a shipped one, or a list of these."
        raise refused(entry.origin, "extends", message, "")
    base = Path(os.path.normpath(path.parent / entry.value))
    if Path(entry.value).suffix in SUFFIXES or os.path.isfile(base):  # noqa: PTH113  odd names
        return base
    shipped = shipped_files(shipped_root(), bases=True)
    if entry.value in shipped:
        return shipped[entry.value]
    if os.path.lexists(base):  # a folder, for instance: the reader says so
        return base
    near = near_names(entry.value, shipped)
    message = f"{entry.value} is neither a file ({base}) nor the name of a shipped recipe or base."
    raise refused(entry.origin, "extends", message, f"Did you mean {any_of(near)}?" if near else "Check the path.")


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
    raise refused(path, "", message, f"Start with, for instance, `{example}`.")


def read_recipe_text(path: Path) -> str:
    """The text of a recipe file; ``RecipeError``: missing, unreadable, a folder, over 256 KiB, or no UTF-8."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise refused(path, "", "there is no such file.", "Check the path.") from error
    except IsADirectoryError as error:
        raise refused(path, "", "is a folder.", "Name a recipe file in it.") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise refused(path, "", f"cannot be read: {why}.", "Check the path and its permissions.") from error
    if len(data) > _LARGEST_FILE_BYTES:
        raise refused(path, "", "is larger than 256 KiB, so it is no recipe.", "Name a recipe file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise refused(f"{path}:{line}", "", "is not UTF-8 text.", "Save it as UTF-8.") from error


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
                result = set_at(result, [str(part) for part in own_path(path)], written_out(value, path))
        except RecipeError as error:
            problems.extend(error.problems)
    return (result if tree is None else with_own_evaluation(tree, result)), problems


def _split(flag: str, origin: Origin) -> tuple[str, Node]:
    key, equals, text = flag.partition("=")
    if not equals or not _KEY.match(key):
        raise refused(origin, "", "is no override.", _FORM)
    if key == "extends" or key.startswith("extends."):
        message = "can only be written in a recipe file."
        raise refused(origin, "extends", message, "Override the values themselves.")
    return key, parse_yaml(text, origin)


def set_at(node: Node | None, parts: list[str], value: Node, depth: int = 0) -> Node:
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
        raise refused(value.origin, ".".join(parts[:depth]), message, _FORM)
    entries = dict(held or {})
    entries[part] = set_at(entries.get(part), parts, value, depth + 1)
    return Node(entries, origin)


def _set_in_list(held: list[Node], parts: list[str], value: Node, depth: int) -> list[Node]:
    items, part = list(held), parts[depth]
    # isdecimal alone accepts digits of every script, and int() refuses very long ones.
    index = int(part) if re.fullmatch(r"[0-9]{1,6}", part) else -1
    if not 0 <= index <= len(items):
        remedy = f"Write an index from 0 to {len(items)} ({len(items)} appends)."
        message = f"is a list of {len(items)}, which has no entry {part}."
        raise refused(value.origin, ".".join(parts[:depth]), message, remedy)
    items[index : index + 1] = [set_at(items[index] if index < len(items) else None, parts, value, depth + 1)]
    return items


def refused(where: object, key: str, message: str, remedy: str) -> RecipeError:
    return RecipeError([Problem(str(where), key, message, remedy)])


def own_path(path: KeyPath) -> KeyPath:
    return (*path[:-1], ALIASES.get(path, path[-1])) if path else path


def written_out(node: Node, path: KeyPath = ()) -> Node:
    """The value at ``path`` without short forms: ``model: NAME``, ``data: FILE``, a source alone in place of a list, a
    text in place of a source or a reward, PEFT's names. A key that is written under both names stays as it is."""
    is_text = isinstance(node.value, str)
    if is_text and path in _TEXT:
        node = Node({_TEXT[path]: node}, node.origin)
    elif path in (*_SOURCES, _REWARDS) and node.value and isinstance(node.value, (str, dict)):
        node = Node([node], node.origin)
    elif is_text and path[:-1] in _SOURCES:
        node = Node({"path": node}, node.origin)
    elif is_text and path[:-1] == _REWARDS:
        node = Node({"function" if ":" in node.value else "name": node}, node.origin)
    if isinstance(node.value, dict):
        entries: dict[str, Node] = {}
        for key, child in node.value.items():
            own = str(own_path((*path, key))[-1])
            entries[key if own in node.value else own] = written_out(child, (*path, key))
        return Node(entries, node.origin)
    if isinstance(node.value, list):
        return Node([written_out(item, (*path, index)) for index, item in enumerate(node.value)], node.origin)
    return node


def with_own_evaluation(below: Node, tree: Node) -> Node:
    """``tree``, which is a layer laid over ``below``, without the evaluation data of another task: other training data
    take ``data.eval`` away, and a share of them is held out. A layer's ``eval`` or ``eval_fraction`` replaces both."""
    before, after = below.child("data"), tree.child("data")
    if before is None or after is None or not (isinstance(before.value, dict) and isinstance(after.value, dict)):
        return tree
    evaluation, fraction, train = map(after.child, ("eval", "eval_fraction", "train"))
    new_eval, new_fraction = (after.child(key) is not before.child(key) for key in ("eval", "eval_fraction"))
    changes: dict[str, Node] = {}
    if evaluation is not None and new_eval and fraction is not None and not new_fraction:
        changes["eval_fraction"] = Node(None, evaluation.origin)
    elif evaluation is not None and evaluation.value and not new_eval:
        if fraction is not None and new_fraction and fraction.value is not None:
            changes["eval"] = Node([], fraction.origin)
        elif train is not None and not _sources(before) & _sources(after):
            left_out = ", ".join(str(node.value) for path, node in evaluation.leaves() if path[-1:] == ("path",))
            changes["eval"] = Node([], Origin(DERIVED, text=f"data.train is replaced, so {left_out} is left out"))
            changes["eval_fraction"] = fraction if new_fraction and fraction else Node(_HELD_OUT, train.origin)
    return Node({**tree.value, "data": Node({**after.value, **changes}, after.origin)}, tree.origin)


def _sources(data: Node) -> set[tuple[str, ...]]:
    train = data.child("train")
    sources = train.value if train is not None and isinstance(train.value, list) else []
    named = [[source.child(key) for key in ("path", "name")] for source in sources]
    return {tuple("" if one is None else str(one.value) for one in pair) for pair in named}
