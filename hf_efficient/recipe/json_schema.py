"""JSON Schema (2020-12) of a recipe file, for completion and checks in an editor."""

from collections.abc import Mapping
from typing import Any

from hf_efficient.recipe.files import ALIASES
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import checked_recipe


def json_schema() -> dict[str, Any]:
    """The schema of a recipe file, or of a base that others extend, as plain data. No key is required, because
    ``extends`` may bring it; ``train`` holds the fields of the installed trl, of one configuration class where the file
    says ``objective``. Raises ``SetupError``: trl or transformers is not installed."""
    schema = Recipe.model_json_schema()
    for name, section in schema["$defs"].items():
        # Lists are replaced as a whole, so an entry of one is complete; everything else may come from a file below.
        if name != "SourceSection":
            section.pop("required", None)
    schema.pop("required", None)
    _allow_short_forms(schema)
    fields = {name: found for name in OBJECTIVES if (found := _fields(name))}
    schema["$defs"]["Train"] = _train(fields)
    schema["properties"] = {"extends": _EXTENDS, **schema["properties"], "train": {"$ref": "#/$defs/Train"}}
    for section in (schema, *schema["$defs"].values()):
        section["properties"] = {name: _or_null(one) for name, one in section["properties"].items()}
    names = set(schema["$defs"]["Train"]["properties"])
    schema["allOf"] = [_narrowed(name, sorted(names - set(fields[name]))) for name in sorted(fields)]
    about = "A recipe of hf_efficient, as `hf-efficient schema` writes it."
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$comment": about, **schema}


_EXTENDS: dict[str, Any] = {
    "description": "Recipe file, or files, that this one is laid over: paths relative to this file, or names of "
    "shipped recipes or bases (bases/qlora).",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"type": "null"},
    ],
}


def _fields(objective: str) -> dict[str, Any]:
    section = checked_recipe(objective).model_fields["train"].annotation
    properties: dict[str, Any] = section.model_json_schema()["properties"]  # type: ignore[union-attr]
    return {name: one for name, one in properties.items() if one.get("type") != "null"}


def _train(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for of_objective in fields.values() for name in of_objective)
    classes = ", ".join(OBJECTIVES[name].config for name in fields)
    variants = {name: [one[name] for one in fields.values() if name in one] for name in names}
    return {
        "type": "object",
        "description": f"Fields of the installed class of the objective, unrenamed: {classes}.",
        "additionalProperties": False,
        "properties": {name: _property(found) for name, found in variants.items()},
    }


def _property(variants: list[dict[str, Any]]) -> dict[str, Any]:
    """One field; where the configuration classes differ, either's values are valid and there is no default."""
    about = ("title", "description", "default")
    values = [{key: value for key, value in one.items() if key not in about} for one in variants]
    schema = values[0] if all(value == values[0] for value in values) else {"anyOf": values}
    first = variants[0]
    shared = {"description": first["description"]} if "description" in first else {}
    if "default" in first and all(one["default"] == first["default"] for one in variants):
        shared["default"] = first["default"]
    return {**schema, **shared}


def _narrowed(objective: str, others: list[str]) -> dict[str, Any]:
    """Fields of other objectives can only be unset."""
    return {
        "if": {"properties": {"objective": {"const": objective}}, "required": ["objective"]},
        "then": {"properties": {"train": {"properties": {name: {"type": "null"} for name in others}}}},
    }


def _allow_short_forms(schema: dict[str, Any]) -> None:
    """What ``files.py`` writes out: a text for a section or a source, a source for a list, other names of keys."""
    for name, section in schema["$defs"].items():
        is_text = name in ("ModelSection", "TeacherSection", "DataSection", "SourceSection", "RewardSection")
        section["type"] = ["object", "null", *(["string"] if is_text else [])]
    sections: dict[tuple[str | int, ...], Any] = {(): schema, ("adapter",): schema["$defs"]["AdapterSection"]}
    for path, key in ALIASES.items():
        properties = sections[path[:-1]]["properties"]
        properties[path[-1]] = properties[key]
    data = schema["$defs"]["DataSection"]["properties"]
    for held, key in ((data, "train"), (data, "eval"), (schema["properties"], "rewards")):
        about = {name: held[key].pop(name) for name in ("title", "description", "default") if name in held[key]}
        held[key] = {**about, "if": {"type": "array"}, "then": held[key], "else": held[key]["items"]}


def _or_null(one: dict[str, Any]) -> dict[str, Any]:
    """``null`` unsets a key; sections say so themselves."""
    value = dict(one)
    if "const" in value:
        value["enum"] = [value.pop("const")]
    if "enum" in value and None not in value["enum"]:
        value["enum"] = [*value["enum"], None]
    if isinstance(value.get("type"), str) and value["type"] != "null":
        value["type"] = [value["type"], "null"]
    if "anyOf" in value and {"type": "null"} not in value["anyOf"]:
        value["anyOf"] = [*value["anyOf"], {"type": "null"}]
    return value
