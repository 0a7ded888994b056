"""``train:``: the fields of the installed ``trl.SFTConfig`` or ``trl.DPOConfig``, and the check of a recipe's values.

Reading the fields means importing trl, and with it torch and transformers: seconds. They are remembered by version,
so that from the second time on a recipe is checked without any of the three.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import json
import logging
import math
import os
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.errors import SetupError
from hf_efficient.facts.libraries import quiet_imports
from hf_efficient.facts.tables import cache_dir
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.schema_check import TRUTHS, Finding, meant_key, reads_as_number, suggestion
from hf_efficient.recipe.tree import KeyPath, Node, any_of, found, nearest

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
_FORMAT = 3

ELSEWHERE = {
    "output_dir": "Write `output_dir` at the top of the recipe.",
    "model_init_kwargs": "Write the settings under `model`: dtype, attn_implementation, revision.",
    "trust_remote_code": "Write `model.trust_remote_code`.",
    "dataset_kwargs": "Write the settings under `data`.",
    "hub_token": "Run `hf auth login` or set HF_TOKEN: a recipe is copied into the run directory and the model card.",
}

# Values below these are refused by the libraries only after the model was loaded, or train nothing at all.
LEAST: dict[str, int] = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "max_length": 1,
    "learning_rate": 0,
    "weight_decay": 0,
    "warmup_steps": 0,
    "max_grad_norm": 0,
    "eval_steps": 0,
    "save_steps": 0,
    "dataloader_num_workers": 0,
    "seed": 0,
    "data_seed": 0,
}
# NumPy takes no larger seed.
MOST: dict[str, int] = {"seed": 2**32 - 1, "data_seed": 2**32 - 1}
# Fields of which 0 trains nothing, and what to write instead.
TRAINS_NOTHING = {
    "max_steps": "Write a number of steps, or -1 for as many as `num_train_epochs` takes.",
    "num_train_epochs": "Write more than 0.",
}

# Longer lists of choices (there are dozens of optimizers) are shown only where no close one can be named.
_MOST_SHOWN = 12

_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "mapping": "a mapping",
    "null": "null",
}


class TrainField(msgspec.Struct, frozen=True):
    """One field of the configuration class.

    Attributes:
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
    return cache_dir() / "train_fields" / f"{method}-{versions}-{_FORMAT}.json"


def _recall(path: Path) -> dict[str, TrainField] | None:
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=list[TrainField])
    except OSError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.debug("rebuilding the field list %s: %s", path, error)
        return None
    return {field.name: field for field in fields} or None


def _remember(path: Path, fields: Mapping[str, TrainField]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        os.close(handle)
        try:
            Path(name).write_bytes(msgspec.json.encode(list(fields.values())))
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)
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


def train_defaults(recipe: Recipe) -> dict[str, Any]:
    """The defaults of the fields that ``train:`` does not set, by name in alphabetical order.

    Fields that are set elsewhere in a recipe, and those that YAML cannot write, are left out.
    """
    fields = train_fields(recipe.method)
    return {
        name: fields[name].default
        for name in sorted(fields)
        if name not in recipe.train and name not in ELSEWHERE and fields[name].kinds != ("null",)
    }


def check_train(tree: Node, method: str, fields: Mapping[str, TrainField]) -> list[Finding]:
    """Unknown fields, fields with another home in the recipe, values of the wrong kind, choice or range."""
    section = tree.child("train")
    if section is None or not isinstance(section.value, dict):
        return []
    return [one for name, node in section.value.items() for one in _check_field(name, node.plain(), method, fields)]


def _check_field(name: str, value: Any, method: str, fields: Mapping[str, TrainField]) -> Iterator[Finding]:
    path: KeyPath = ("train", name)
    if name in ELSEWHERE:
        yield Finding(path, "is set elsewhere in a recipe.", ELSEWHERE[name])
    elif name not in fields:
        meant = meant_key(path, [one for one in fields if one not in ELSEWHERE])
        message = f"is no field of trl.{CONFIG_CLASSES[method]} (trl {train_versions()['trl']})."
        yield Finding(path, message, suggestion(path, meant), meant)
    else:
        yield from _check_value(path, value, fields[name])


def _check_value(path: KeyPath, value: Any, field: TrainField) -> Iterator[Finding]:
    if not _fits(value, field.kinds):
        yield Finding(path, f"is {found(value)}, but must be {_expected(field)}.", _remedy(value, field))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _check_item((*path, index), item, field)
    elif isinstance(value, str):
        # Of this field alone, text is the items of a list with spaces between.
        yield from _check_choice(path, value, value.split() if field.name == "debug" else [value], field)
    elif isinstance(value, (int, float)) and math.isfinite(value):  # the check of the whole recipe tells the others
        yield from _check_range(path, value, field.name)


def _check_range(path: KeyPath, value: int | float, name: str) -> Iterator[Finding]:
    if name in LEAST and value < LEAST[name]:
        yield Finding(path, f"is {found(value)}, but must be at least {LEAST[name]}.")
    elif name in MOST and value > MOST[name]:
        yield Finding(path, f"is {found(value)}, but must be at most {MOST[name]}.")
    # A negative number of steps stands for "not given"; of epochs it stands for nothing.
    elif name in TRAINS_NOTHING and (value == 0 or (value < 0 and name == "num_train_epochs")):
        yield Finding(path, f"is {found(value)}, which trains nothing.", TRAINS_NOTHING[name])


def _check_item(path: KeyPath, item: Any, field: TrainField) -> Iterator[Finding]:
    if field.item_kinds and not _fits(item, field.item_kinds):
        expected = any_of(_WORDS[kind] for kind in field.item_kinds if kind in _WORDS)
        yield Finding(path, f"is {found(item)}, but must be {expected}.")
    elif isinstance(item, str):
        yield from _check_choice(path, item, [item], field)


def _check_choice(path: KeyPath, value: str, words: list[str], field: TrainField) -> Iterator[Finding]:
    if not field.choices or all(word in field.choices for word in words):
        return
    meant = nearest(value, field.choices)
    remedy = f"Choices: {any_of(field.choices)}." if len(field.choices) > _MOST_SHOWN else ""
    if meant is not None:
        remedy = f"Did you mean {meant}?"
    yield Finding(path, f"is {found(value)}, but must be {_choice(field)}.", remedy)


def _fits(value: Any, kinds: tuple[str, ...]) -> bool:
    if "any" in kinds:
        return True
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, int):
        return "int" in kinds or "float" in kinds
    of = {float: "float", str: "str", list: "list", dict: "mapping", type(None): "null"}
    return of[type(value)] in kinds


def _expected(field: TrainField) -> str:
    kinds = [kind for kind in field.kinds if kind != "null"]
    if not kinds:
        return "left out: it cannot be written in YAML"
    named = {**_WORDS, "str": _choice(field)} if field.choices else _WORDS
    return any_of(named[kind] for kind in kinds)


def _choice(field: TrainField) -> str:
    return f"one of {any_of(field.choices)}" if len(field.choices) <= _MOST_SHOWN else "one of its choices"


def _remedy(value: Any, field: TrainField) -> str:
    if value is None:
        return "Leave the key out to get its default."
    if isinstance(value, float) and "int" in field.kinds and value.is_integer():
        return f"Write {int(value)}."
    if not isinstance(value, str):
        return ""
    if "bool" in field.kinds and value.lower() in TRUTHS:
        return "Write true or false, without quotes."
    meant = reads_as_number(value)
    return f"Write {value} without quotes." if meant is not None and _fits(meant, field.kinds) else ""
