"""The peak of a CUDA allocator's history by the modules of the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hf_efficient.account.code_class import class_at
from hf_efficient.account.memory_peak import Live
from hf_efficient.records import ModuleAllocations

__all__ = ["NO_MODULE", "module_sums"]

NO_MODULE = "outside the model's modules"

_NUMBER = re.compile(r"\.\d+(?=\.|\s|$)")


@dataclass
class _Sum:
    bytes: int = 0
    blocks: int = 0
    names: set[str] = field(default_factory=set)
    lines: Counter[str] = field(default_factory=Counter)


def module_sums(live: Sequence[Live], line_of: Callable[[Live], str]) -> list[ModuleAllocations]:
    """Blocks by the module that asked for them, the largest sum first; none where of no block it is known.

    A block that was labelled tells its module. Of another the class is told whose ``forward`` stands innermost in its
    stack, outside torch. Modules that differ in their numbers alone, as the layers do, are summed up.

    Args:
        live: blocks.
        line_of: a block, the line of code that asked for it.
    """
    sums: dict[str, _Sum] = {}
    for block in live:
        name = block.label or _class(block) or NO_MODULE
        held = sums.setdefault(_NUMBER.sub(".*", name), _Sum())
        held.bytes += block.bytes
        held.blocks += 1
        held.names.add(name)
        held.lines[line_of(block)] += block.bytes
    if set(sums) <= {NO_MODULE}:
        return []
    ordered = sorted(sums.items(), key=lambda held: (-held[1].bytes, held[0]))
    return [_told(name, held) for name, held in ordered]


def _told(name: str, held: _Sum) -> ModuleAllocations:
    line = max(held.lines, key=lambda one: (held.lines[one], one))
    shown = next(iter(held.names)) if len(held.names) == 1 else name
    return ModuleAllocations(shown, held.bytes, held.blocks, 0 if name == NO_MODULE else len(held.names), line)


def _class(block: Live) -> str:
    for frame in block.frames or ():
        filename = str(frame["filename"]).replace("\\", "/")
        if frame["name"] == "forward" and filename.endswith(".py") and "/torch/" not in filename:
            found = class_at(str(frame["filename"]), int(frame["line"]))
            if found:
                return f"class {found}"
    return ""
