"""YAML text to a tree of values that know their lines; nothing is constructed but plain data.

Only PyYAML's reader, scanner, parser and composer are used. There is no constructor, so no tag can build an
object; explicit tags are refused nevertheless, because whoever writes one expects what will not happen.
"""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import Composer, ComposerError
from yaml.parser import Parser
from yaml.reader import Reader, ReaderError
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.nodes import KeyPath, Node, dotted
from hf_efficient.recipe.scalars import read_scalar
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.words import found

__all__ = ["MOST_NODES", "NESTING_LIMIT", "parse_yaml"]

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
