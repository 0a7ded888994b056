"""The fields that ``train:`` may hold: those of the installed ``trl.SFTConfig`` or ``trl.DPOConfig``.

Reading them means importing trl, and with it torch and transformers: seconds. They are remembered by version,
so that from the second time on a recipe is checked without any of the three.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import logging
import os
import tempfile
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_efficient.errors import SetupError
from hf_efficient.hardware.paths import cache_dir
from hf_efficient.hardware.quiet import quiet_imports

__all__ = ["CONFIG_CLASSES", "TrainField", "train_fields", "train_versions"]

logger = logging.getLogger(__name__)

CONFIG_CLASSES = {"sft": "SFTConfig", "dpo": "DPOConfig"}

# Kinds that a class accepts beyond its annotation: DPOConfig makes a list of one name by itself.
_ALSO_ACCEPTED = {("dpo", "loss_type"): ("str",)}
_KINDS: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    type(None): "null",
    dict: "mapping",
}
_FORMAT = 2


@dataclass(frozen=True)
class TrainField:
    """One field of the configuration class.

    Attributes:
        name: the field's name, as in ``train:``.
        kinds: accepted kinds, out of bool, int, float, str, null, list, mapping; ``any`` where all are.
        item_kinds: kinds of a list's items; empty where they are not known.
        choices: the accepted texts (of the value, or of a list's items); empty where any text is.
        default: the class's default as plain data.
        help: the field's own description.
    """

    name: str
    kinds: tuple[str, ...]
    item_kinds: tuple[str, ...]
    choices: tuple[str, ...]
    default: Any
    help: str


def train_versions() -> dict[str, str]:
    """Versions of the packages that define the fields.

    Raises:
        SetupError: one of them is not installed.
    """
    try:
        return {name: importlib.metadata.version(name) for name in ("trl", "transformers")}
    except importlib.metadata.PackageNotFoundError as error:
        message = f"The package {error.name} is not installed. Install it: pip install {error.name}"
        raise SetupError(message) from error


def train_fields(method: str) -> Mapping[str, TrainField]:
    """Fields of the configuration class of ``method`` (sft or dpo) by name, in the class's order.

    Raises:
        SetupError: trl or transformers is not installed or cannot be imported.
    """
    path = _cache_path(method)
    remembered = _recall(path)
    if remembered is not None:
        return remembered
    logger.info("Reading the fields of the installed TRL (once per version) ...")
    fields = {name: _read_fields(name) for name in CONFIG_CLASSES}
    for name, of_method in fields.items():
        _remember(_cache_path(name), of_method)
    return fields[method]


def _cache_path(method: str) -> Path:
    versions = "-".join(f"{name}-{version}" for name, version in train_versions().items())
    return cache_dir() / "train_fields" / f"{method}-{versions}.json"


def _recall(path: Path) -> dict[str, TrainField] | None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != _FORMAT or not held["fields"]:
            return None
        return {entry["name"]: _from_json(entry) for entry in held["fields"]}
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.debug("rebuilding the field list %s: %s", path, error)
        return None


def _from_json(entry: dict[str, Any]) -> TrainField:
    for name in ("kinds", "item_kinds", "choices"):
        if not isinstance(entry[name], list):
            raise TypeError(f"{name} is no list")
        entry[name] = tuple(entry[name])
    return TrainField(**entry)


def _remember(path: Path, fields: Mapping[str, TrainField]) -> None:
    held = {"format": _FORMAT, "fields": [dataclasses.asdict(field) for field in fields.values()]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(held, stream)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.debug("the field list is not remembered: %s", error)


def _read_fields(method: str) -> dict[str, TrainField]:
    try:
        with quiet_imports():
            import trl

            config_class = getattr(trl, CONFIG_CLASSES[method])
            more_choices = {"report_to": ("none", "all", *_integrations())}
    except (ImportError, RuntimeError, AttributeError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"trl {train_versions()['trl']} cannot be imported: {told}. Reinstall it."
        raise SetupError(message) from error
    hints = typing.get_type_hints(config_class)
    return {
        field.name: _describe(method, field, hints[field.name], more_choices.get(field.name, ()))
        for field in dataclasses.fields(config_class)
        if field.init
    }


def _integrations() -> list[str]:
    """What transformers can report to, which its annotations do not tell."""
    from transformers.integrations import integration_utils

    return sorted(integration_utils.INTEGRATION_TO_CALLBACK)


def _describe(method: str, field: dataclasses.Field[Any], hint: Any, more_choices: tuple[str, ...] = ()) -> TrainField:
    kinds: list[str] = []
    items: list[str] = []
    choices: list[str] = [*more_choices]
    for part in _alternatives(hint):
        _add_alternative(part, kinds, items, choices)
    if "const" in field.metadata:
        kinds.append(_KINDS.get(type(field.metadata["const"]), "null"))
    kinds.extend(_ALSO_ACCEPTED.get((method, field.name), ()))
    choices.extend(str(choice) for choice in field.metadata.get("choices") or ())
    return TrainField(
        name=field.name,
        kinds=tuple(dict.fromkeys(kinds)),
        item_kinds=tuple(dict.fromkeys(items)),
        choices=tuple(dict.fromkeys(choices)),
        default=_plain_default(field),
        help=" ".join(str(field.metadata.get("help") or "").split()),
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _add_alternative(part: Any, kinds: list[str], items: list[str], choices: list[str]) -> None:
    """Add what one alternative of a type accepts; classes that YAML cannot write accept nothing."""
    origin = typing.get_origin(part) or part
    if origin is Any:
        kinds.append("any")
    elif origin is typing.Literal:
        values = typing.get_args(part)
        kinds.extend(_KINDS[type(value)] for value in values if type(value) in _KINDS)
    elif origin is list:
        kinds.append("list")
        for item in typing.get_args(part):
            for alternative in _alternatives(item):
                _add_alternative(alternative, items, [], choices)
    elif isinstance(origin, type) and issubclass(origin, enum.Enum):
        kinds.append("str")
        choices.extend(str(member.value) for member in origin)
    elif origin in _KINDS:
        kinds.append(_KINDS[origin])


def _plain_default(field: dataclasses.Field[Any]) -> Any:
    default = field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    if isinstance(default, enum.Enum):
        default = default.value
    try:
        return json.loads(json.dumps(default))
    except TypeError:
        return None
