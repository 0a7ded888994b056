"""JSON Schema (2020-12) of a recipe file, for completion and checks in an editor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import (
    CONFIG_CLASSES,
    ELSEWHERE,
    LEAST,
    MOST,
    TRAINS_NOTHING,
    TrainField,
    train_fields,
)

_TYPES = {
    "bool": "boolean",
    "int": "integer",
    "float": "number",
    "str": "string",
    "list": "array",
    "mapping": "object",
    "null": "null",
}
# Lists are replaced as a whole, so an entry of one is complete; everything else may come from a file below.
_COMPLETE = frozenset({"SourceSection"})


def json_schema() -> dict[str, Any]:
    """The schema of a recipe file, or of a base that others extend, as plain data.

    No key is required, because ``extends`` may bring it; ``train`` holds the fields of the installed trl,
    narrowed to one configuration class where the file itself says ``method``.

    Raises:
        SetupError: trl or transformers is not installed.
    """
    schema = Recipe.model_json_schema()
    for name, section in schema["$defs"].items():
        if name not in _COMPLETE:
            section.pop("required", None)
    schema.pop("required", None)
    fields = {method: _writable(train_fields(method)) for method in CONFIG_CLASSES}
    schema["$defs"]["Train"] = _train(fields)
    schema["properties"] = {"extends": _EXTENDS, **schema["properties"], "train": {"$ref": "#/$defs/Train"}}
    schema["allOf"] = [_narrowed(method, list(fields[method])) for method in sorted(fields)]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_EXTENDS: dict[str, Any] = {
    "description": "Recipe file, or files, that this one is laid over: paths relative to this file, or names of "
    "shipped recipes or bases (bases/qlora).",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "null"},
    ],
}


def _writable(fields: Mapping[str, TrainField]) -> dict[str, TrainField]:
    return {name: field for name, field in fields.items() if name not in ELSEWHERE and field.kinds != ("null",)}


def _train(fields: Mapping[str, Mapping[str, TrainField]]) -> dict[str, Any]:
    names = dict.fromkeys(name for of_method in fields.values() for name in of_method)
    classes = " or ".join(f"trl.{name}" for name in CONFIG_CLASSES.values())
    return {
        "type": "object",
        "description": f"Fields of the installed {classes}, unrenamed.",
        "additionalProperties": False,
        "properties": {
            name: _property([of_method[name] for of_method in fields.values() if name in of_method]) for name in names
        },
    }


def _property(variants: list[TrainField]) -> dict[str, Any]:
    """One field; where the configuration classes differ, either's values are valid and no default is told."""
    values = [_values(field) for field in variants]
    schema = values[0] if all(value == values[0] for value in values) else {"anyOf": values}
    defaults = [field.default for field in variants]
    told = {"description": variants[0].help} if variants[0].help else {}
    default = {"default": defaults[0]} if all(value == defaults[0] for value in defaults) else {}
    return {**schema, **told, **default}


def _values(field: TrainField) -> dict[str, Any]:
    if "any" in field.kinds:
        return {}
    alternatives = [_kind(kind, field) for kind in field.kinds]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _kind(kind: str, field: TrainField) -> dict[str, Any]:
    if kind == "str" and field.choices and "list" not in field.kinds:
        return {"type": "string", "enum": list(field.choices)}
    if kind in ("int", "float"):
        return {"type": _TYPES[kind], **_range(field.name)}
    if kind != "list" or not field.item_kinds:
        return {"type": _TYPES[kind]}
    items: dict[str, Any] = {"type": [_TYPES[item] for item in field.item_kinds if item in _TYPES]}
    if field.choices:
        items["enum"] = list(field.choices)
    return {"type": "array", "items": items}


def _range(name: str) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if name in LEAST:
        limits["minimum"] = LEAST[name]
    if name in MOST:
        limits["maximum"] = MOST[name]
    if name == "num_train_epochs":
        limits["exclusiveMinimum"] = 0
    elif name in TRAINS_NOTHING:
        limits["not"] = {"const": 0}
    return limits


def _narrowed(method: str, names: list[str]) -> dict[str, Any]:
    return {
        "if": {"properties": {"method": {"const": method}}, "required": ["method"]},
        "then": {"properties": {"train": {"propertyNames": {"enum": names}}}},
    }
