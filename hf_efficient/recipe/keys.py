"""The valid keys of a recipe, or of another file of sections, and which of them an unknown key was meant to be."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable
from typing import Any

from hf_efficient.recipe.nodes import KeyPath, dotted
from hf_efficient.recipe.schema import Recipe, Section
from hf_efficient.recipe.words import any_of, nearest

__all__ = ["meant_key", "section_at", "section_of", "suggestion"]

# What other tools call a setting, and where it is here. Exact names only.
_OTHER_NAMES: dict[str, KeyPath] = {
    "base_model": ("model", "id"),
    "model_id": ("model", "id"),
    "model_name_or_path": ("model", "id"),
    "torch_dtype": ("model", "dtype"),
    "load_in_4bit": ("adapter", "quantization", "bits"),
    "load_in_8bit": ("adapter", "quantization", "bits"),
    "bnb_4bit_quant_type": ("adapter", "quantization", "type"),
    "bnb_4bit_use_double_quant": ("adapter", "quantization", "double_quant"),
    "bnb_4bit_compute_dtype": ("adapter", "quantization", "compute_dtype"),
    "lora_r": ("adapter", "r"),
    "rank": ("adapter", "r"),
    "lora_alpha": ("adapter", "alpha"),
    "lora_dropout": ("adapter", "dropout"),
    "lora_target_modules": ("adapter", "target_modules"),
    "use_dora": ("adapter", "dora"),
    "use_rslora": ("adapter", "rslora"),
    "datasets": ("data", "train"),
    "dataset": ("data", "train"),
    "val_set_size": ("data", "eval_fraction"),
    "lr": ("train", "learning_rate"),
    "batch_size": ("train", "per_device_train_batch_size"),
    "micro_batch_size": ("train", "per_device_train_batch_size"),
    "num_epochs": ("train", "num_train_epochs"),
    "epochs": ("train", "num_train_epochs"),
    "sequence_len": ("train", "max_length"),
    "max_seq_length": ("train", "max_length"),
}


def section_of(annotation: Any) -> type[Section] | None:
    """The section that an annotation holds, also as ``Section | None`` or ``list[Section]``; else None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    if typing.get_origin(annotation) in (list, typing.Union, types.UnionType):
        found = [section_of(part) for part in typing.get_args(annotation)]
        return next((section for section in found if section is not None), None)
    return None


def section_at(path: KeyPath, root: type[Section] = Recipe) -> type[Section] | None:
    """The section at a path of the file; None where the path ends in a value or in nothing known."""
    section: type[Section] | None = root
    for part in path:
        if isinstance(part, int) or section is None:
            continue
        field = section.model_fields.get(part)
        section = section_of(field.annotation) if field is not None else None
    return section


def meant_key(path: KeyPath, train_names: Iterable[str], root: type[Section] = Recipe) -> KeyPath | None:
    """The valid path that an unknown one was meant to be: the same name elsewhere, or a close one."""
    key = str(path[-1])
    names = list(train_names)
    here = names if path[:-1] == ("train",) else list(_names_at(path[:-1], root))
    elsewhere = [*_homes(root).get(key, ()), *([("train", key)] if key in names else [])]
    others = [home for home in elsewhere if home[:-1] != path[:-1]]
    if len(others) == 1:
        return others[0]
    if key in _OTHER_NAMES and root is Recipe:
        return _OTHER_NAMES[key]
    close = nearest(key, here)
    return (*path[:-1], close) if close is not None else None


def suggestion(path: KeyPath, meant: KeyPath | None, root: type[Section] = Recipe) -> str:
    """The remedy for an unknown key: the key that was meant, else those that are valid here."""
    if meant is not None:
        return f"Did you mean `{meant[-1] if meant[:-1] == path[:-1] else dotted(meant)}`?"
    names = _names_at(path[:-1], root)
    return f"Valid here: {any_of(names)}." if names else ""


def _names_at(path: KeyPath, root: type[Section]) -> list[str]:
    section = section_at(path, root)
    names = list(section.model_fields) if section is not None else []
    return ["extends", *names] if not path and root is Recipe else names


@functools.cache
def _homes(root: type[Section]) -> dict[str, list[KeyPath]]:
    """Every key's name to the paths where it is valid."""
    homes: dict[str, list[KeyPath]] = {}
    _collect(root, (), homes)
    return homes


def _collect(section: type[Section], path: KeyPath, homes: dict[str, list[KeyPath]]) -> None:
    for name, field in section.model_fields.items():
        homes.setdefault(name, []).append((*path, name))
        below = section_of(field.annotation)
        # data.eval repeats data.train, which stands for both.
        if below is not None and name != "eval":
            is_list = typing.get_origin(field.annotation) is list
            _collect(below, (*path, name, 0) if is_list else (*path, name), homes)
