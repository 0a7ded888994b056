"""How a problem is put: what was found, in plain words, and which valid name was probably meant.

Plain YAML scalars read as YAML 1.2's core schema reads them.

PyYAML speaks YAML 1.1, in which ``no`` is false, ``010`` is eight, ``12:30`` is a number of minutes and
``2e-4`` is text. None of this is what somebody who writes a recipe means.

The values of a recipe file, each with where it was written.

Files, ``extends`` and command-line overrides are all layers of the same tree, so composing them is one
recursive merge, and provenance survives it for free.

YAML text to a tree of values that know their lines; nothing is constructed but plain data.

Only PyYAML's reader, scanner, parser and composer are used. There is no constructor, so no tag can build an
object; explicit tags are refused nevertheless, because whoever writes one expects what will not happen.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.schema import Origin


def found(value: Any) -> str:
    """What a value is, in plain words: ``the text '3'``, ``true``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {_shortened(value)!r}" if value else "empty text"
    if isinstance(value, (int, float)):
        return f"the number {_shortened(str(value))}"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    return "a mapping" if value else "an empty mapping"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that ``name`` was probably meant to be; None where none is close."""
    candidates = {candidate.lower(): candidate for candidate in sorted(valid)}
    # Long names are never typing errors, and difflib is slow on them.
    close = difflib.get_close_matches(name.lower()[:100], candidates, n=1, cutoff=0.6)
    return candidates[close[0]] if close else None


def any_of(choices: Iterable[Any]) -> str:
    """``a, b or c``."""
    shown = [str(choice) for choice in choices]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)\Z")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
# No setting needs more digits, and Python itself refuses to convert very long ones.
_MOST_DIGITS = 100


def read_scalar(text: str) -> str | int | float | bool | None:
    """The value that an unquoted scalar stands for; what is no null, bool or number is text.

    Raises:
        ValueError: a number with more than 100 characters.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if text in _NAN or _INF.match(text):
        return float(text.replace(".", ""))
    for pattern, convert in ((_INT, int), (_OCTAL, _octal), (_HEX, _hexadecimal), (_FLOAT, float)):
        if pattern.match(text):
            if len(text) > _MOST_DIGITS:
                raise ValueError("is a number of more than 100 characters.")
            return convert(text)
    return text


def _octal(text: str) -> int:
    return int(text[2:], 8)


def _hexadecimal(text: str) -> int:
    return int(text[2:], 16)


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


MOST_NODES = 20_000
NESTING_LIMIT = 32


def parse_yaml(text: str, origin: Origin) -> Node:
    """The tree of one YAML document.

    Args:
        text: the document.
        origin: where it comes from. With ``text`` (a flag of the command line) all values share this origin,
            else each gets its own line.

    Raises:
        RecipeError: bad syntax, duplicate or non-text keys, tags, merge keys, recursive or exploding aliases,
            nesting deeper than 32, control characters. All but those of syntax are reported together.
    """
    try:
        root = _Composer(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise RecipeError([_syntax_problem(error, origin)]) from error
    except ReaderError as error:
        raise RecipeError([_character_problem(error, text, origin)]) from error
    except (ValueError, OverflowError) as error:
        # PyYAML passes escapes such as "\UFFFFFFFF" and %YAML 9999... on to chr() and int() unchecked.
        message = "holds an escape or a directive that stands for no value."
        raise RecipeError([Problem(str(origin), "", message, "Write the text itself.")]) from error
    if root is None:
        return Node(None, origin)
    builder = _Builder(origin)
    node = builder.build(root, ())
    if builder.problems:
        raise RecipeError(builder.problems)
    return node


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's composer with a limit on nesting; explicit tags stay on the nodes, implicit ones are None."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()
        if not isinstance(event, yaml.CollectionStartEvent):
            return super().compose_node(parent, index)
        self._depth += 1
        if self._depth > NESTING_LIMIT:
            told = f"nested more than {NESTING_LIMIT} levels deep"
            mark: Any = event.start_mark  # the C and the Python parser have a mark of their own each
            raise ComposerError(None, None, told, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Mark quoted scalars as text; everything else goes without a tag."""
        return "text" if kind is yaml.ScalarNode and not implicit[0] else None

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """No path resolvers here."""

    def ascend_resolver(self) -> None:
        """No path resolvers here."""


class _Builder:
    """Composed nodes to ``Node``s, collecting every problem on the way."""

    def __init__(self, origin: Origin) -> None:
        self.problems: list[Problem] = []
        self._origin = origin
        self._count = 0
        self._open: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath, line: int | None = None) -> Node:
        """Build one value; ``line`` (0-based) is the line of its key where it has one."""
        origin = self._at(node.start_mark.line if line is None else line)
        self._count += 1
        if self._count == MOST_NODES + 1:
            message = f"holds more than {MOST_NODES} values once its aliases are written out."
            self.problems.append(Problem(str(origin), "", message, "Write the values out, or fewer of them."))
        if self._count > MOST_NODES:
            return Node(None, origin)
        if id(node) in self._open:
            self._complain(origin, path, "is an alias that contains itself.", "Write the value out.")
            return Node(None, origin)
        if node.tag not in (None, "text"):
            message = f"carries the tag {_shown_tag(node.tag)}; a recipe is plain data and builds no objects."
            self._complain(origin, path, message, "Remove the tag.")
            return Node(None, origin)
        self._open.add(id(node))
        value = self._value(node, path, origin)
        self._open.discard(id(node))
        return Node(value, origin)

    def _value(self, node: yaml.Node, path: KeyPath, origin: Origin) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, origin)
        raise TypeError(f"a node that is no mapping, sequence or scalar: {node!r}")

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

    def _key(self, node: yaml.Node, path: KeyPath, origin: Origin) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._complain(origin, path, "has a key that is a mapping or a list.", "Keys are text.")
        elif node.tag not in (None, "text"):
            message = f"has a key with the tag {_shown_tag(node.tag)}; a recipe builds no objects."
            self._complain(origin, path, message, "Remove the tag.")
        elif node.tag is None and node.value == "<<":
            message = "uses a merge key (<<)."
            self._complain(origin, path, message, "Write the keys out, or share them with `extends`.")
        else:
            key = self._scalar(node, path, origin)
            if isinstance(key, str):
                return key
            message = f"has the key {found(key)}, which is not text."
            self._complain(origin, path, message, "Keys are text.")
        return None

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath, origin: Origin) -> Any:
        text: str = node.value
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
            message = "holds a NUL or half of a surrogate pair, which is not text."
            self._complain(origin, path, message, "Write the character itself.")
            return ""
        if node.tag == "text":
            return text
        try:
            return read_scalar(text)
        except ValueError as error:
            self._complain(origin, path, str(error), "Write it shorter, for instance as 1e9.")
            return None

    def _at(self, line: int) -> Origin:
        return self._origin if self._origin.text else Origin(self._origin.source, line + 1)

    def _complain(self, origin: Origin, path: KeyPath, message: str, remedy: str) -> None:
        self.problems.append(Problem(str(origin), dotted(path), message, remedy))


def _shown_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!", 1) if tag.startswith("tag:yaml.org,2002:") else tag


def _syntax_problem(error: yaml.MarkedYAMLError, origin: Origin) -> Problem:
    mark = error.problem_mark or error.context_mark
    where = origin if origin.text or mark is None else Origin(origin.source, mark.line + 1)
    told = ", ".join(part for part in (error.context, error.problem) if part)
    column = f" (column {mark.column + 1})" if mark is not None else ""
    return Problem(str(where), "", f"is not valid YAML: {told}{column}.", _syntax_remedy(error))


def _syntax_remedy(error: yaml.MarkedYAMLError) -> str:
    told = f"{error.context} {error.problem}"
    if r"'\t'" in told:
        return "Indent with spaces, not with tabs."
    if "mapping values are not allowed" in told:
        return "Quote the text that contains a colon, or check the indentation."
    if "but found another document" in told:
        return "Keep one document: remove the line with ---."
    return ""


def _character_problem(error: ReaderError, text: str, origin: Origin) -> Problem:
    line = text.count("\n", 0, error.position) + 1
    where = origin if origin.text else Origin(origin.source, line)
    code = error.character if isinstance(error.character, int) else ord(error.character[0])
    message = f"holds the control character U+{code:04X}."
    return Problem(str(where), "", message, "Remove it; in quoted text, write an escape.")
