"""The values of a recipe file, each with where it was written.

Files, ``extends`` and command-line overrides are all layers of the same tree, so composing them is one
recursive merge, and provenance survives it for free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hf_efficient.recipe.schema import Origin

__all__ = ["KeyPath", "Node", "dotted", "merge", "wrap"]

KeyPath = tuple[str | int, ...]


@dataclass
class Node:
    """A value and its origin; mappings and lists hold nodes again.

    Attributes:
        value: ``dict[str, Node]``, ``list[Node]``, or a scalar (str, int, float, bool, None).
        origin: where it was written.
    """

    value: Any
    origin: Origin

    @property
    def is_container(self) -> bool:
        return isinstance(self.value, (dict, list))

    def child(self, part: str | int) -> Node | None:
        """The node below under a key (mapping) or index (list); None where there is none."""
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and 0 <= part < len(self.value):
            return self.value[part]
        return None

    def nearest(self, path: KeyPath) -> Node:
        """The node at ``path``, or the deepest one on the way there that exists."""
        node = self
        for part in path:
            below = node.child(part)
            if below is None:
                break
            node = below
        return node

    def get(self, path: KeyPath) -> Node | None:
        """The node at ``path``; None where there is none."""
        node: Node | None = self
        for part in path:
            node = node.child(part) if node is not None else None
        return node

    def remove(self, path: KeyPath) -> None:
        """Take the node at ``path`` out of the tree; nothing happens where there is none."""
        parent = self.get(path[:-1])
        if parent is None or parent.child(path[-1]) is None:
            return
        del parent.value[path[-1]]

    def plain(self) -> Any:
        """The value without origins: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def copy(self) -> Node:
        """A tree of its own, so that changing one does not change the other."""
        if isinstance(self.value, dict):
            return Node({key: child.copy() for key, child in self.value.items()}, self.origin)
        if isinstance(self.value, list):
            return Node([child.copy() for child in self.value], self.origin)
        return Node(self.value, self.origin)

    def leaves(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
        """Every scalar and every empty container, with its path, in the order of the file."""
        if self.is_container and self.value:
            items = self.value.items() if isinstance(self.value, dict) else enumerate(self.value)
            for part, child in items:
                yield from child.leaves((*path, part))
        else:
            yield path, self


def wrap(value: Any, origin: Origin) -> Node:
    """Plain data as a tree in which everything has the same origin."""
    if isinstance(value, dict):
        return Node({key: wrap(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list):
        return Node([wrap(item, origin) for item in value], origin)
    return Node(value, origin)


def merge(below: Node, above: Node) -> Node:
    """The layer ``above`` laid over ``below``: mappings are merged by key, everything else is replaced."""
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    merged = dict(below.value)
    for key, node in above.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return Node(merged, above.origin)


def dotted(path: KeyPath) -> str:
    """``("data", "train", 0, "path")`` as ``data.train.0.path``."""
    return ".".join(str(part) for part in path)
