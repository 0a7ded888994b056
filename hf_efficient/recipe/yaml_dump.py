"""Plain data to YAML that this package, and YAML 1.1 readers such as PyYAML, read back as the same data."""

from __future__ import annotations

from typing import Any

import yaml

from hf_efficient.recipe.scalars import read_scalar

__all__ = ["dump_yaml"]


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever either version of YAML would misread it, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))


def _style(text: str) -> str | None:
    """The quotes that a text needs; None leaves it to PyYAML, which knows YAML 1.1 and the indicators."""
    # Only an escape keeps these apart from a line feed.
    if any(character in text for character in "\r\x85\u2028\u2029"):
        return '"'
    try:
        return None if isinstance(read_scalar(text), str) else "'"
    except ValueError:
        return "'"


class _BlockDumper(_Dumper):
    """Text of several lines as it is, where YAML can."""


def _represent_lines(dumper: _Dumper, text: str) -> yaml.Node:
    style = _style(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text and not style else style)


_Dumper.add_representer(str, _represent_text)
_BlockDumper.add_representer(str, _represent_lines)


def dump_yaml(data: Any, *, blocks: bool = False) -> str:
    """Dicts, lists, text, numbers, booleans and None as a YAML document, keys in their order.

    Args:
        data: what to write.
        blocks: text of several lines is written line by line (``|``), for people to read.
    """
    dumper = _BlockDumper if blocks else _Dumper
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)
