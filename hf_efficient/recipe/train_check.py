"""``train:`` against the fields of the installed configuration class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hf_efficient.recipe.findings import Finding
from hf_efficient.recipe.keys import meant_key, suggestion
from hf_efficient.recipe.nodes import KeyPath, Node
from hf_efficient.recipe.scalars import read_scalar
from hf_efficient.recipe.train_fields import CONFIG_CLASSES, TrainField, train_versions
from hf_efficient.recipe.words import any_of, found, nearest

__all__ = ["ELSEWHERE", "LEAST", "MOST", "TRAINS_NOTHING", "check_train"]

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


def check_train(tree: Node, method: str, fields: Mapping[str, TrainField]) -> list[Finding]:
    """Unknown fields, fields with another home in the recipe, values of the wrong kind, choice or range."""
    section = tree.child("train")
    if section is None or not isinstance(section.value, dict):
        return []
    findings: list[Finding] = []
    for name, node in section.value.items():
        path: KeyPath = ("train", name)
        if name in ELSEWHERE:
            findings.append(Finding(path, "is set elsewhere in a recipe.", ELSEWHERE[name]))
        elif name not in fields:
            findings.append(_unknown(path, method, fields))
        else:
            findings.extend(_check_value(path, node.plain(), fields[name]))
    return findings


def _unknown(path: KeyPath, method: str, fields: Mapping[str, TrainField]) -> Finding:
    meant = meant_key(path, [name for name in fields if name not in ELSEWHERE])
    message = f"is no field of trl.{CONFIG_CLASSES[method]} (trl {train_versions()['trl']})."
    return Finding(path, message, suggestion(path, meant), meant)


def _check_value(path: KeyPath, value: Any, field: TrainField) -> list[Finding]:
    if not _fits(value, field.kinds):
        return [Finding(path, f"is {found(value)}, but must be {_expected(field)}.", _remedy(value, field))]
    if isinstance(value, list):
        return [finding for index, item in enumerate(value) for finding in _check_item((*path, index), item, field)]
    if isinstance(value, str):
        # Of this field alone, text is the items of a list with spaces between.
        words = value.split() if field.name == "debug" else [value]
        return _check_choice(path, value, words, field)
    return _check_range(path, value, field.name) if isinstance(value, (int, float)) else []


def _check_range(path: KeyPath, value: int | float, name: str) -> list[Finding]:
    if not math.isfinite(value):  # the check of the whole recipe tells it
        return []
    if name in LEAST and value < LEAST[name]:
        return [Finding(path, f"is {found(value)}, but must be at least {LEAST[name]}.")]
    if name in MOST and value > MOST[name]:
        return [Finding(path, f"is {found(value)}, but must be at most {MOST[name]}.")]
    # A negative number of steps stands for "not given"; of epochs it stands for nothing.
    if name in TRAINS_NOTHING and (value == 0 or (value < 0 and name == "num_train_epochs")):
        return [Finding(path, f"is {found(value)}, which trains nothing.", TRAINS_NOTHING[name])]
    return []


def _check_item(path: KeyPath, item: Any, field: TrainField) -> list[Finding]:
    if field.item_kinds and not _fits(item, field.item_kinds):
        expected = any_of(_WORDS[kind] for kind in field.item_kinds if kind in _WORDS)
        return [Finding(path, f"is {found(item)}, but must be {expected}.")]
    return _check_choice(path, item, [item], field) if isinstance(item, str) else []


def _check_choice(path: KeyPath, value: str, words: list[str], field: TrainField) -> list[Finding]:
    if not field.choices or all(word in field.choices for word in words):
        return []
    meant = nearest(value, field.choices)
    if meant is not None:
        remedy = f"Did you mean {meant}?"
    else:
        remedy = f"Choices: {any_of(field.choices)}." if len(field.choices) > _MOST_SHOWN else ""
    return [Finding(path, f"is {found(value)}, but must be {_choice(field)}.", remedy)]


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
    if isinstance(value, str):
        return _remedy_for_text(value, field)
    return ""


def _remedy_for_text(value: str, field: TrainField) -> str:
    if "bool" in field.kinds and value.lower() in ("yes", "no", "on", "off", "true", "false"):
        return "Write true or false, without quotes."
    try:
        meant = read_scalar(value)
    except ValueError:
        return ""
    fits = isinstance(meant, (int, float)) and _fits(meant, field.kinds)
    return f"Write {value} without quotes." if fits else ""
