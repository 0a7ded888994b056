"""What the checks find: a place in the tree and what is wrong there, before it is told with file and line."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.errors import Problem
from hf_efficient.recipe.nodes import KeyPath, Node, dotted

__all__ = ["Finding", "to_problems"]


@dataclass(frozen=True)
class Finding:
    """One thing wrong with the tree of a recipe.

    Attributes:
        path: the key.
        message: what is wrong.
        remedy: what to write instead.
        meant: the key that was probably meant, for an unknown one.
    """

    path: KeyPath
    message: str
    remedy: str = ""
    meant: KeyPath | None = None


def to_problems(tree: Node, findings: list[Finding]) -> list[Problem]:
    """Findings with file and line, in the order of files and lines; the command line last.

    A key that is not there is told at the closest key around it that is.
    """

    def place(finding: Finding) -> tuple[bool, str, int]:
        origin = tree.nearest(finding.path).origin
        return bool(origin.text), origin.source, origin.line or 0

    return [
        Problem(str(tree.nearest(one.path).origin), dotted(one.path), one.message, one.remedy)
        for one in sorted(findings, key=place)
    ]
