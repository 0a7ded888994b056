"""YAML text to a tree of values that know where each was written; nothing is constructed but plain data.

Files, ``extends`` and command-line overrides are layers of the same tree, merged recursively. PyYAML only composes:
no constructor runs, and explicit tags are refused. Scalars follow YAML 1.2's core schema: in PyYAML's YAML 1.1 ``no``
is false, ``010`` is eight, ``12:30`` is a number of minutes and ``2e-4`` is text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from hf_efficient.errors import Problem, RecipeError, first_line
from hf_efficient.recipe.schema import Origin

KeyPath = tuple[str | int, ...]

_MOST_NODES = 20_000

_CONSTANTS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
# Control characters, which a terminal would obey, but tab and the ends of lines; halves of surrogate pairs.
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def read_scalar(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar: null, bool, number or text; ``ValueError``: of thousands of digits."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NO_NUMBER.fullmatch(text):
        return float(text.replace(".", ""))
    is_int = _INT.fullmatch(text)
    if not is_int and not _FLOAT.fullmatch(text):
        return text
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base) if is_int else float(text)


def found(value: Any) -> str:
    """What a value is, in plain words: ``the text '3'``, ``true``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {_shortened(value)!r}" if value else "empty text"
    if isinstance(value, (int, float)):
        return f"the number {_shortened(str(value))}"
    kind = "list" if isinstance(value, (list, tuple)) else "mapping"
    return f"a {kind}" if value else f"an empty {kind}"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``name`` was probably meant to be; None where none is close."""
    candidates = {candidate.lower(): candidate for candidate in sorted(valid)}
    # Long names are never typing errors, and difflib is slow on them.
    close = difflib.get_close_matches(name.lower()[:100], candidates, n=1, cutoff=0.6)
    return candidates[close[0]] if close else None


def any_of(choices: Iterable[Any]) -> str:
    *rest, last = [str(choice) for choice in choices]
    return f"{', '.join(rest)} or {last}" if rest else last


@dataclass
class Node:
    """A value and where it was written; ``value`` is ``dict[str, Node]``, ``list[Node]``, or a scalar."""

    value: Any
    origin: Origin

    def child(self, part: str | int) -> Node | None:
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and 0 <= part < len(self.value):
            return self.value[part]
        return None

    def nearest(self, path: KeyPath) -> Node:
        """The node at ``path``, or the deepest one on the way there that exists."""
        below = self.child(path[0]) if path else None
        return self if below is None else below.nearest(path[1:])

    def get(self, path: KeyPath) -> Node | None:
        node: Node | None = self
        for part in path:
            node = node.child(part) if node is not None else None
        return node

    def remove(self, path: KeyPath) -> None:
        parent = self.get(path[:-1])
        if parent is not None and parent.child(path[-1]) is not None:
            del parent.value[path[-1]]

    def plain(self) -> Any:
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        return [child.plain() for child in self.value] if isinstance(self.value, list) else self.value

    def leaves(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Node]]:
        if isinstance(self.value, (dict, list)) and self.value:
            for part, child in self.value.items() if isinstance(self.value, dict) else enumerate(self.value):
                yield from child.leaves((*path, part))
        else:
            yield path, self


def wrap(value: Any, origin: Origin) -> Node:
    if isinstance(value, dict):
        return Node({key: wrap(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list):
        return Node([wrap(item, origin) for item in value], origin)
    return Node(value, origin)


def flat(data: dict[str, Any]) -> dict[str, Any]:
    """The leaves of plain data by dotted key."""
    return {dotted(path): node.value for path, node in wrap(data, Origin("default")).leaves()}


def merge(below: Node, above: Node) -> Node:
    """The layer ``above`` laid over ``below``: mappings are merged by key, everything else is replaced."""
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    merged = dict(below.value)
    for key, node in above.value.items():
        merged[key] = merge(merged[key], node) if key in merged else node
    return Node(merged, above.origin)


def dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def parse_yaml(text: str, origin: Origin) -> Node:
    """The tree of one YAML document; with an ``origin.text`` (a flag) all values share the origin. Raises
    ``RecipeError``: bad syntax; or all duplicate or non-text keys, tags and merge keys together."""
    builder = _Builder(origin)
    try:
        root = yaml.compose(text, Loader=_Loader)
        node = Node(None, origin) if root is None else builder.build(root, ())
    except yaml.MarkedYAMLError as error:
        raise RecipeError([_syntax_problem(error, origin)]) from error
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        message = f"cannot be read as YAML: {first_line(error).rstrip('.')}."
        raise RecipeError([Problem(str(origin), "", message, "Write plain values.")]) from error
    if builder.problems:
        raise RecipeError(builder.problems)
    return node


class _Loader(yaml.BaseLoader):
    """Explicit tags stay on the nodes, quoted scalars get ``text``, others None."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        return "text" if kind is yaml.ScalarNode and not implicit[0] else None


class _Builder:
    def __init__(self, origin: Origin) -> None:
        self.problems: list[Problem] = []
        self._origin = origin
        self._count = 0

    def build(self, node: Any, path: KeyPath, line: int | None = None) -> Node:
        """Build one value; ``line`` (0-based) is the line of its key where it has one."""
        origin = self._at(node.start_mark.line if line is None else line)
        self._count += 1
        if self._count > _MOST_NODES:
            raise ValueError(f"it holds more than {_MOST_NODES} values once its aliases are written out")
        if node.tag not in (None, "text"):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!", 1)
            message = f"carries the tag {tag}; a recipe is plain data and builds no objects."
            self._complain(origin, path, message, "Remove the tag.")
            return Node(None, origin)
        if isinstance(node, yaml.MappingNode):
            value: Any = self._mapping(node, path)
        elif isinstance(node, yaml.SequenceNode):
            value = [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        else:
            value = self._scalar(node, path, origin)
        return Node(value, origin)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Node]:
        values: dict[str, Node] = {}
        for key_node, value_node in node.value:
            origin = self._at(key_node.start_mark.line)
            key = self._key(key_node, path, origin)
            if key is None:
                continue
            if key in values:
                first = values[key].origin.line
                message = f"is written twice, first in line {first}." if first else "is written twice."
                self._complain(origin, (*path, key), message, "Keep one of the two.")
                continue
            values[key] = self.build(value_node, (*path, key), key_node.start_mark.line)
        return values

    def _key(self, node: Any, path: KeyPath, origin: Origin) -> str | None:
        if not isinstance(node, yaml.ScalarNode) or node.tag not in (None, "text"):
            self._complain(origin, path, "has a key that is no plain text.", "Keys are text.")
        elif node.tag is None and node.value == "<<":
            message = "uses a merge key (<<)."
            self._complain(origin, path, message, "Write the keys out, or share them with `extends`.")
        else:
            key = self._scalar(node, path, origin)
            if isinstance(key, str):
                return key
            self._complain(origin, path, f"has the key {found(key)}, which is not text.", "Keys are text.")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, origin: Origin) -> Any:
        text: str = node.value
        if odd := _NO_TEXT.search(text):
            message = f"holds the character U+{ord(odd[0]):04X}, which is no text."
            self._complain(origin, path, message, "Remove it, or write the character itself.")
            return ""
        return text if node.tag == "text" else read_scalar(text)

    def _at(self, line: int) -> Origin:
        return self._origin if self._origin.text else Origin(self._origin.source, line + 1)

    def _complain(self, origin: Origin, path: KeyPath, message: str, remedy: str) -> None:
        self.problems.append(Problem(str(origin), dotted(path), message, remedy))


def _syntax_problem(error: yaml.MarkedYAMLError, origin: Origin) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = origin if origin.text or mark is None else Origin(origin.source, mark.line + 1)
    fault = ", ".join(part for part in (error.context, error.problem) if part)
    column = f" (column {mark.column + 1})" if mark is not None else ""
    remedies = {
        r"'\t'": "Indent with spaces, not with tabs.",
        "mapping values are not allowed": "Quote the text that contains a colon, or check the indentation.",
        "but found another document": "Keep one document: remove the line with ---.",
    }
    remedy = next((remedy for part, remedy in remedies.items() if part in fault), "")
    return Problem(str(where), "", f"is not valid YAML: {fault}{column}.", remedy)
