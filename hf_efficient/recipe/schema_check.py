"""A tree against the sections of ``schema.py``: pydantic's errors in plain words, with the likely name of keys."""

import math
import re
import types
import typing
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from hf_efficient.errors import Problem
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.schema import Origin, Recipe, Section
from hf_efficient.recipe.tree import KeyPath, Node, any_of, dotted, found, nearest, read_scalar

_WORDS = key_table("recipe_words")
_TRUTHS = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false"})

# Longer lists of choices (there are dozens of optimizers) are shown only where no close one can be named.
_MOST_SHOWN = 20

ELSEWHERE: dict[str, str] = _WORDS["elsewhere"]
"""Fields of the configuration class that a recipe sets in another place, and where."""

_OTHER_NAMES = {name: tuple(key.split(".")) for key, names in _WORDS["others"].items() for name in names}


@dataclass(frozen=True)
class Finding:
    """One thing wrong with the tree of a recipe; ``meant`` is the key that was probably meant by an unknown one."""

    path: KeyPath
    message: str
    remedy: str = ""
    meant: KeyPath | None = None


def to_problems(tree: Node, findings: list[Finding]) -> list[Problem]:
    """Findings with file and line, in this order, the command line last; a missing key at the closest key around it,
    or the file itself where that key is another's."""

    def origin(path: KeyPath) -> Origin:
        closest = tree.nearest(path).origin
        is_elsewhere = tree.get(path) is None and not closest.text and closest.source != tree.origin.source
        return tree.origin if is_elsewhere else closest

    def place(finding: Finding) -> tuple[bool, str, int]:
        at = origin(finding.path)
        return bool(at.text), at.source, at.line or 0

    findings = sorted(findings, key=place)
    return [Problem(str(origin(one.path)), dotted(one.path), one.message, one.remedy) for one in findings]


def check_schema(tree: Node, root: type[Section] = Recipe, kind: str = "a recipe") -> list[Finding]:
    """Unknown and missing keys, wrong types, values out of range, non-finite numbers; ``kind``: the file's name."""
    findings = [Finding(path, said) for path, node in tree.leaves() if (said := _oddity(path, node.value))]
    found = {finding.path for finding in findings}
    try:
        root.model_validate(tree.plain(), strict=True)
    except ValidationError as error:
        for path, errors in _by_path(tree, error.errors()).items():
            if path in found:
                continue
            if errors[0]["type"] == "extra_forbidden":
                findings.append(_unknown_key(path, root, kind))
            elif errors[0]["type"] == "missing":
                section = _section_at(path[:-1], root)
                about = section.model_fields[str(path[-1])].description if section is not None else None
                remedy = _WORDS["missing"].get(dotted(path), f"Add it: {about or 'it is required.'}")
                findings.append(Finding(path, "is missing.", remedy.format(dotted(path))))
            else:
                findings.append(_wrong_value(path, errors, tree))
    return findings


def unset(tree: Node, root: type[Section] = Recipe, known: Collection[str] = ()) -> None:
    """Take every ``null`` away whose key has no such value, so that it gets its default; ``known``: keys of ``train``
    that another configuration class has."""
    try:
        root.model_validate(tree.plain(), strict=True)
    except ValidationError as error:
        for path in {_key_path(tree, one): None for one in error.errors() if _is_known(one, known)}:
            node = tree.get(path)
            if path and isinstance(path[-1], str) and node is not None and node.value is None:
                tree.remove(path)


def _is_known(error: Any, known: Collection[str]) -> bool:
    path = error["loc"]
    return error["type"] != "extra_forbidden" or (len(path) == 2 and path[0] == "train" and path[1] in known)


def _unknown_key(path: KeyPath, root: type[Section], kind: str) -> Finding:
    key, around = str(path[-1]), path[:-1]
    section = _section_at(around, root)
    names = list(section.model_fields) if section is not None else []
    message = f"is no key of {kind}."
    if around == ("train",):
        if key in ELSEWHERE:
            return Finding(path, "is set elsewhere in a recipe.", ELSEWHERE[key])
        message = f"is no field of {section.__doc__}."
    elif not around and issubclass(root, Recipe):
        names = ["extends", *names]
    meant = _meant_key(key, around, names, root)
    if meant is not None:
        return Finding(path, message, f"Did you mean `{meant[-1] if meant[:-1] == around else dotted(meant)}`?", meant)
    return Finding(path, message, f"Valid here: {any_of(names)}." if len(names) <= _MOST_SHOWN else "")


def _meant_key(key: str, around: KeyPath, names: list[str], root: type[Section]) -> KeyPath | None:
    """The valid path that an unknown one was meant to be: the same name elsewhere, or a close one."""
    others = [path for path in _key_paths(root) if path[-1] == key and path[:-1] != around]
    nearest_ones = [path for path in others if len(path) == min(map(len, others))]
    if len(nearest_ones) == 1:
        return nearest_ones[0]
    if key in _OTHER_NAMES and issubclass(root, Recipe):
        return _OTHER_NAMES[key]
    close = nearest(key, names)
    return (*around, close) if close is not None else None


def key_called(name: str, root: type[Section]) -> str | None:
    """The key with this name, dotted or not, of ``train`` first, then the shortest; or what other tools call so."""
    path = tuple(name.split("."))
    found = [one for one in _key_paths(root) if 0 not in one and path in (one, one[-1:])]
    found.sort(key=lambda one: (one[0] != "train", len(one)))
    meant = found[0] if found else _OTHER_NAMES.get(name)
    return None if meant is None else dotted(meant)


def _by_path(tree: Node, errors: list[Any]) -> dict[KeyPath, list[Any]]:
    """Errors by the key that they are about, without the names of a union's alternatives in pydantic's location."""
    grouped: dict[KeyPath, list[Any]] = {}
    alternatives: set[KeyPath] = set()
    for error in errors:
        path = _key_path(tree, error)
        grouped.setdefault(path, []).append(error)
        if len(path) < len(error["loc"]):
            alternatives.add(path)
    # A list with a bad item is reported at the item, not a second time as "no text" by the other alternative.
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


def _wrong_value(path: KeyPath, errors: list[Any], tree: Node) -> Finding:
    node = tree.get(path)
    value = node.plain() if node is not None else None
    expected = dict.fromkeys(_expected(error) for error in errors)
    return Finding(path, f"is {found(value)}, but must be {any_of(expected)}.", _remedy(value, errors))


def _expected(error: Any) -> str:
    if error["type"] == "literal_error":
        choices = _choices(error)
        return any_of(choices) if len(choices) <= _MOST_SHOWN else "one of its choices"
    words = _WORDS["kinds"].get(error["type"])
    return f"valid: {error['msg']}" if words is None else words.format(**error.get("ctx", {}))


def _remedy(value: Any, errors: list[Any]) -> str:
    kinds = {error["type"] for error in errors}
    if isinstance(value, float) and "int_type" in kinds:
        return f"Write {int(value)}." if value.is_integer() else ""
    if not isinstance(value, str):
        return ""
    if "bool_type" in kinds and value.lower() in _TRUTHS:
        return "Write true or false, without quotes."
    number = _number(value)
    if number is not None and ("float_type" in kinds or ("int_type" in kinds and isinstance(number, int))):
        return f"Write {value} without quotes."
    if kinds & {"float_type", "int_type"} and re.fullmatch(r"\d[\d.]* *[A-Za-z]+", value):
        return "Write the number alone, without a unit."
    choices = [choice for error in errors if error["type"] == "literal_error" for choice in _choices(error)]
    meant = nearest(value, choices)
    if meant is not None:
        return f"Did you mean {meant}?"
    return f"Choices: {any_of(choices)}." if len(choices) > _MOST_SHOWN else ""


def _choices(error: Any) -> list[str]:
    return str(error["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")


def _number(text: str) -> int | float | None:
    try:
        value = read_scalar(text)
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _oddity(path: KeyPath, value: Any) -> str:
    """What no key takes: ``.nan``; ``.inf``, but for ``train.max_grad_norm``, where it never clips; text of spaces."""
    never_clips = (("train", "max_grad_norm"), math.inf)
    if isinstance(value, float) and not math.isfinite(value) and (path, value) != never_clips:
        return f"is {found(value)}, but must be a finite number."
    is_blank = isinstance(value, str) and value.isspace() and path[:1] != ("train",)  # which has names of tokens
    return "holds spaces alone, but must be text." if is_blank else ""


def _section_of(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if typing.get_origin(annotation) in (list, typing.Union, types.UnionType):
        found = [_section_of(part) for part in typing.get_args(annotation)]
        return next((section for section in found if section is not None), None)
    return None


def _section_at(path: KeyPath, root: type[Section]) -> type[Section] | None:
    section: type[Section] | None = root
    for part in path:
        if isinstance(part, str) and section is not None:
            field = section.model_fields.get(part)
            section = _section_of(field.annotation) if field is not None else None
    return section


def _key_paths(section: type[Section], around: KeyPath = ()) -> Iterator[KeyPath]:
    for name, field in section.model_fields.items():
        yield (*around, name)
        below = _section_of(field.annotation)
        # data.eval repeats data.train, which stands for both.
        if below is not None and name != "eval":
            is_list = typing.get_origin(field.annotation) is list
            yield from _key_paths(below, (*around, name, 0) if is_list else (*around, name))
