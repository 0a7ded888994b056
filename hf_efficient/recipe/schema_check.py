"""The tree against the sections of ``schema.py``: pydantic decides, its verdicts are told in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from pydantic import ValidationError

from hf_efficient.recipe.findings import Finding
from hf_efficient.recipe.keys import meant_key, section_at, suggestion
from hf_efficient.recipe.nodes import KeyPath, Node
from hf_efficient.recipe.scalars import read_scalar
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.section import Section
from hf_efficient.recipe.words import any_of, found, nearest

__all__ = ["check_schema"]

_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_TRUTHS = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})


def check_schema(
    tree: Node, train_names: Iterable[str] = (), root: type[Section] = Recipe, kind: str = "a recipe"
) -> list[Finding]:
    """Unknown and missing keys, wrong types, values out of range, numbers that are not finite.

    Args:
        tree: the merged recipe, or another file of sections.
        train_names: names of the fields of ``train:``, to recognise one that is written elsewhere.
        root: what the whole file is.
        kind: what the file is called.
    """
    findings = _not_finite(tree)
    told = {finding.path for finding in findings}
    try:
        root.model_validate(tree.plain(), strict=True)
    except ValidationError as error:
        for path, errors in _by_path(tree, error.errors()).items():
            if path not in told:
                findings.append(_finding(path, errors, tree, _File(root, kind, list(train_names))))
    return findings


class _File(NamedTuple):
    """What is checked: the section that the whole is, its name, and the fields of ``train:``."""

    root: type[Section]
    kind: str
    train_names: list[str]


def _by_path(tree: Node, errors: list[Any]) -> dict[KeyPath, list[Any]]:
    """Errors grouped by the key they are about.

    The location that pydantic gives holds the names of a union's alternatives as well; those are no keys.
    """
    grouped: dict[KeyPath, list[Any]] = {}
    alternatives: set[KeyPath] = set()
    for error in errors:
        path = _key_path(tree, error)
        grouped.setdefault(path, []).append(error)
        if len(path) < len(error["loc"]):
            alternatives.add(path)
    # A list with a bad item is told at the item, not a second time as "no text" by the other alternative.
    deeper = {path[:end] for path in grouped for end in range(len(path))}
    return {path: found for path, found in grouped.items() if not (path in alternatives and path in deeper)}


def _key_path(tree: Node, error: Any) -> KeyPath:
    node, path = tree, list[str | int]()
    for part in error["loc"]:
        below = node.child(part)
        if below is not None:
            node = below
            path.append(part)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _finding(path: KeyPath, errors: list[Any], tree: Node, file: _File) -> Finding:
    kind = errors[0]["type"]
    if kind == "extra_forbidden":
        meant = meant_key(path, file.train_names, file.root)
        return Finding(path, f"is no key of {file.kind}.", suggestion(path, meant, file.root), meant)
    if kind == "missing":
        section = section_at(path[:-1], file.root)
        help_text = section.model_fields[str(path[-1])].description if section is not None else None
        return Finding(path, "is missing.", f"Add it: {help_text or 'it is required.'}")
    node = tree.get(path)
    value = node.plain() if node is not None else None
    expected = list(dict.fromkeys(_expected(error) for error in errors))
    return Finding(path, f"is {found(value)}, but must be {any_of(expected)}.", _remedy(value, errors))


def _expected(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _KINDS:
        return _KINDS[kind]
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"{words} {context[name]:g}"
    if kind == "literal_error":
        return str(context["expected"]).replace("'", "")
    if kind == "too_short":
        return f"a list of at least {context['min_length']}"
    if kind == "string_too_short":
        return f"at least {context['min_length']} character long"
    return f"valid: {error['msg']}"


def _remedy(value: Any, errors: list[Any]) -> str:
    kinds = {error["type"] for error in errors}
    if value is None:
        return "Leave the key out to get its default."
    if isinstance(value, float) and "int_type" in kinds:
        return f"Write {int(value)}." if value.is_integer() else ""
    if not isinstance(value, str):
        return ""
    if "bool_type" in kinds and value.lower() in _TRUTHS:
        return "Write true or false, without quotes."
    if kinds & {"int_type", "float_type"} and _reads_as_number(value):
        return f"Write {value} without quotes."
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    meant = nearest(value, choices)
    return f"Did you mean {meant}?" if meant is not None else ""


def _choices(error: Any) -> list[str]:
    return str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")


def _reads_as_number(text: str) -> bool:
    try:
        value = read_scalar(text)
    except ValueError:
        return False
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _not_finite(tree: Node) -> list[Finding]:
    """``.nan`` is never a setting; ``.inf`` is one for ``train.max_grad_norm`` alone, where it never clips."""
    findings = []
    for path, node in tree.leaves():
        value = node.value
        never_clips = path == ("train", "max_grad_norm") and value == math.inf
        if isinstance(value, float) and not math.isfinite(value) and not never_clips:
            findings.append(Finding(path, f"is {found(value)}, but must be a finite number."))
    return findings
