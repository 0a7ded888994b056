"""``train:``: the fields of the class that the installed TRL has for the objective, as a section of the recipe.

They are cached by version, so that checking a recipe again imports neither trl nor torch nor transformers.
"""

import dataclasses
import enum
import functools
import importlib
import importlib.metadata
import json
import logging
import types
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import msgspec
from pydantic import Field, create_model

from hf_efficient.errors import SetupError
from hf_efficient.facts.environment import missing_package, quiet_imports
from hf_efficient.facts.tables import cache_dir, key_table
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe, Section
from hf_efficient.recipe.schema_check import ELSEWHERE
from hf_efficient.run_dir.json_file import write_whole

logger = logging.getLogger(__name__)

# Kinds accepted beyond a class's annotation: DPOConfig makes a list of one name; callbacks/stop.py settles "auto".
_ALSO_ACCEPTED = {("dpo", "loss_type"): ("str",), **{(name, "save_steps"): ("str",) for name in OBJECTIVES}}
_KINDS: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null", dict: "mapping"}
_TYPES: dict[str, Any] = {"bool": bool, "int": int, "float": float, "str": str, "mapping": dict[str, Any], "null": None}
_FORMAT = 10

_BOUNDS: dict[str, dict[str, Any]] = key_table("train_fields")["bounds"]


class TrainField(msgspec.Struct, frozen=True):
    name: str
    kinds: tuple[str, ...]  # accepted, out of bool, int, float, str, null, list, mapping; ``any`` where all are
    item_kinds: tuple[str, ...]  # of a list's items; empty where they are not known
    choices: tuple[str, ...]  # the accepted texts (of the value, or of a list's items); empty where any text is
    default: Any
    help: str


def train_versions() -> dict[str, str]:
    """Versions of the packages that define the fields; ``SetupError`` where one is not installed."""
    try:
        return {name: importlib.metadata.version(name) for name in ("trl", "transformers")}
    except importlib.metadata.PackageNotFoundError as error:
        told = f"The package {error.name} is not installed: run `pip install {error.name}`."
        raise missing_package(error.name) or SetupError(told) from error


def train_fields(objective: str) -> Mapping[str, TrainField]:
    """By name, in the class's order; none where TRL has dropped an experimental one. ``SetupError``: no usable trl."""
    remembered = _recall(_cache_path(objective))
    if remembered or (remembered is not None and OBJECTIVES[objective].is_experimental):
        return remembered
    logger.info("Reading the fields of the installed TRL (once per version) ...")
    fields = {name: _read_fields(name) for name in OBJECTIVES}
    for name, own in fields.items():
        path = _cache_path(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, msgspec.json.encode(list(own.values())).decode())
        except OSError as error:
            logger.debug("the field list is not remembered: %s", error)
    return fields[objective]


def _cache_path(objective: str) -> Path:
    versions = "-".join(f"{name}-{version}" for name, version in train_versions().items())
    return cache_dir() / "train_fields" / f"{objective}-{versions}-{_FORMAT}.json"


def _recall(path: Path) -> dict[str, TrainField] | None:
    try:
        fields = msgspec.json.decode(path.read_bytes(), type=list[TrainField])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return {field.name: field for field in fields}


def _read_fields(objective: str) -> dict[str, TrainField]:
    try:
        with quiet_imports():
            config_class = trl_class(OBJECTIVES[objective].config)
            from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

            # What transformers can report to, which its annotations leave out.
            more_choices: dict[str, tuple[str, ...]] = {"report_to": ("none", "all", *sorted(INTEGRATION_TO_CALLBACK))}
            more_choices["save_steps"] = ("auto",)
            if OBJECTIVES[objective].imitates:
                more_choices["loss_type"] = ("auto",)
    except (ImportError, RuntimeError, AttributeError) as error:
        if OBJECTIVES[objective].is_experimental:
            return {}
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SetupError(f"trl {train_versions()['trl']} cannot be imported: {why}. Reinstall it.") from error
    hints = typing.get_type_hints(config_class)
    return {
        field.name: _describe(objective, field, hints[field.name], more_choices.get(field.name, ()))
        for field in dataclasses.fields(config_class)
        if field.init
    }


def _describe(objective: str, field: dataclasses.Field[Any], hint: Any, more_choices: tuple[str, ...]) -> TrainField:
    kinds: list[str] = []
    items: list[str] = []
    choices: list[str] = [*more_choices]
    for part in _alternatives(hint):
        _add_alternative(part, kinds, items, choices)
    if "const" in field.metadata:
        kinds.append(_KINDS.get(type(field.metadata["const"]), "null"))
    kinds.extend(_ALSO_ACCEPTED.get((objective, field.name), ()))
    choices.extend(str(choice) for choice in field.metadata.get("choices") or ())
    return TrainField(
        name=field.name,
        kinds=tuple(dict.fromkeys(kinds)),
        item_kinds=tuple(dict.fromkeys(items)),
        choices=tuple(dict.fromkeys(choices)),
        default=_plain_default(field),
        help=" ".join(str(field.metadata.get("help") or "").split()),
    )


def trl_class(path: str) -> Any:
    """The class of TRL at a dotted path, without TRL's notice that its experimental part is unstable, which a run
    says itself. ``ImportError``, ``AttributeError``: this TRL has none."""
    module, _, name = path.rpartition(".")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are importing from 'trl.experimental'")
        return getattr(importlib.import_module(module), name)


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
    """The defaults of the fields that ``train:`` does not set, in alphabetical order, as far as YAML can write them."""
    fields = train_fields(recipe.objective)
    return {
        name: fields[name].default
        for name in sorted(fields)
        if name not in recipe.train and name not in ELSEWHERE and fields[name].kinds != ("null",)
    }


@functools.cache
def checked_recipe(objective: str) -> type[Recipe]:
    """The recipe whose ``train:`` is a section of the configuration class's fields, with bounds of our own."""
    definitions: dict[str, Any] = {
        name: (_annotation(field), Field(field.default, description=field.help or None))
        for name, field in train_fields(objective).items()
        if name not in ELSEWHERE
    }
    about = f"{OBJECTIVES[objective].config} (trl {train_versions()['trl']})"
    section = create_model("Train", __base__=Section, __doc__=about, **definitions)
    return create_model("CheckedRecipe", __base__=Recipe, train=(section, Field(default_factory=section)))


def _annotation(field: TrainField) -> Any:
    """What YAML may write; a field that holds objects of Python alone is None."""
    # Of report_to, transformers takes null for the name of an integration.
    kinds = tuple(kind for kind in field.kinds if kind != "null" or field.name != "report_to")
    if "any" in kinds:
        return Any
    text = Literal[field.choices] if field.choices else str
    items = [text if kind == "str" else _TYPES[kind] for kind in field.item_kinds]
    bounds = Field(**_BOUNDS.get(field.name, {}))
    of: dict[str, Any] = {
        **_TYPES,
        "int": Annotated[int, bounds],
        "float": Annotated[float, bounds],
        # Of this field alone, text is the items of a list with spaces between.
        "str": str if field.name == "debug" else text,
        "list": list[Union[tuple(items)]] if items else list[Any],  # type: ignore[misc]  # noqa: UP007
    }
    return Union[tuple(of[kind] for kind in kinds)] if kinds else None  # noqa: UP007


def is_packed(args: Any, name: Literal["train", "eval"]) -> bool:
    """Whether this data set is packed: evaluation data as ``eval_packing`` says, else as the training is."""
    return bool(args.packing if name == "train" or args.eval_packing is None else args.eval_packing)


def is_padding_free(args: Any) -> bool:
    return bool(args.padding_free or (args.packing and args.packing_strategy in {"bfd", "bfd_split"}))
