"""``a.b=value`` on the command line: one more layer over the recipe's files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.nodes import Node, merge
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.yaml_nodes import NESTING_LIMIT, parse_yaml

__all__ = ["apply_overrides"]

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
