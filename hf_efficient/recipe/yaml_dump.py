"""Plain data to YAML that this package, and YAML 1.1 readers such as PyYAML, read back as the same data."""

from __future__ import annotations

from typing import Any

import yaml

from hf_efficient.recipe.scalars import read_scalar

__all__ = ["dump_yaml"]


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever either version of YAML would take it for something else, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    try:
        is_plain = isinstance(read_scalar(text), str)
    except ValueError:
        is_plain = False
    if is_plain:
        return dumper.represent_str(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'")


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: Any) -> str:
    """Dicts, lists, text, numbers, booleans and None as a YAML document, keys in their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
