"""The keys of another tool's file, each taken once, and the recipe that they make."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.load import put_nested
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import TrainField
from hf_efficient.recipe.tree import found, nearest, read_scalar

_TRUTHS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
_LONG = 200  # characters of a remedy that lists choices by the dozen
_REQUIRED = ("name", "model.id", "data.train", "output_dir")
_STAGE = re.compile(r"z(?:ero)?[-_]?([123])", re.IGNORECASE)


class Draft:
    """Values of a recipe by dotted key, made from another tool's keys."""

    def __init__(self, keys: Mapping[str, Any], fields: Mapping[str, TrainField], where: str) -> None:
        self.needless: list[str] = []  # keys that say nothing here
        self._where = where
        self.values: dict[str, Any] = {}  # lists and mappings of data sources whole
        self.notes: list[str] = []  # keys that are not mapped, and why, or what to write instead
        self.remarks: list[str] = []  # what the recipe does otherwise although no key says so
        self.left = {key: value for key, value in keys.items() if value is not None}  # that nothing has taken yet
        self._sources: dict[str, str] = {}
        self._fields = fields

    def take(self, key: str, default: Any = None) -> Any:
        return self.left.pop(key, default)

    def flag(self, key: str) -> bool:
        value = self.take(key, False)
        return bool(_TRUTHS.get(value.lower(), value)) if isinstance(value, str) else bool(value)

    def number(self, key: str, default: float) -> float:
        value = self.left.get(key, default)
        value = read_scalar(value) if isinstance(value, str) else value
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refused(key, f"is {found(value)}, but must be a number.")
        return value

    def entries(self, key: str) -> list[dict[str, Any]]:
        value = self.take(key) or []
        every = value if isinstance(value, list) else [value]
        held = [{"path": one} if isinstance(one, str) else one for one in every]
        wrong = next((one for one in held if not isinstance(one, dict)), None)
        if wrong is not None:
            raise self.refused(key, f"holds {found(wrong)}, but must be a list of mappings.")
        return [dict(one) for one in held]

    def source(self, key: str, entry: dict[str, Any]) -> dict[str, Any]:
        """Take what both tools and a recipe call alike from an entry; ``path: json`` with one file is the file."""
        made = {name: entry.pop(name) for name in ("path", "name", "split") if entry.get(name) is not None}
        files = entry.pop("data_files", None)
        files = files[0] if isinstance(files, list) and len(files) == 1 else files
        if isinstance(files, str) and made.get("path") in ("json", "csv", "parquet"):
            made["path"] = files
        elif files:
            self.note(f"{key}.data_files", "write one source for each file, its path in `path`.")
        return made

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.take(key) or {}
        if not isinstance(value, dict):
            raise self.refused(key, f"is {found(value)}, but must be a mapping.")
        return dict(value)

    def refused(self, key: str, message: str) -> RecipeError:
        return RecipeError([Problem(self._where, key, message)])

    def put(self, target: str, value: Any, key: str = "") -> None:
        """Set a key of the recipe; ``key``: the source's, empty for a default that is written out."""
        if target.startswith("train."):
            value = fitted(value, self._fields.get(target.removeprefix("train.")))
        self.values[target] = value
        self._sources[target] = key

    def move(self, names: Mapping[str, str], *, flags: bool = False) -> None:
        for key, target in names.items():
            if key in self.left:
                self.put(target, self.flag(key) if flags else self.take(key), key)

    def default(self, target: str, value: Any) -> None:
        if target not in self.values:
            self.put(target, value)

    def note(self, key: str, reason: str) -> None:
        self.take(key)
        self.notes.append(f"{key}: {reason}")

    def note_some(self, beginnings: tuple[str, ...], reason: str) -> None:
        for key in (one for one in list(self.left) if one.startswith(beginnings)):
            self.note(key, reason)

    def note_all(self, reasons: Mapping[str, str]) -> None:
        for key, reason in reasons.items():
            if self.left.get(key):
                self.note(key, reason)
            elif key in self.left:
                self.skip(key)

    def skip(self, key: str) -> None:
        if key in self.left:
            self.take(key)
            self.needless.append(key)

    def note_rest(self, known: Iterable[str], what: str) -> None:
        names = list(known)
        for key in list(self.left):
            close = nearest(key, names)
            self.note(key, f"is {what}." + (f" Did you mean {close}?" if close and close != key else ""))

    def refuse(self, problems: Iterable[Problem]) -> bool:
        """Take values back that do not validate, and note why; whether that solves all problems."""
        for problem in problems:
            below = [one for one in self.values if one == problem.key or one.startswith(f"{problem.key}.")]
            if not problem.key or not below or set(below) & set(_REQUIRED):
                return False
            key = next((self._sources[one] for one in below if self._sources[one]), problem.key)
            remedy = problem.remedy if len(problem.remedy) < _LONG else "docs/recipe-keys.md has the choices."
            self.notes.append(f"{key}: as {problem.key}, {problem.message} {remedy}".strip())
            for one in below:
                del self.values[one]
        return True

    def nested(self) -> dict[str, Any]:
        order = list(Recipe.model_fields)
        made: dict[str, Any] = {}
        rank = {one: (order.index(one.partition(".")[0]), one != "model.id") for one in self.values}
        for target, value in sorted(self.values.items(), key=lambda one: rank[one[0]]):
            put_nested(made, target, value)
        return made


def fitted(value: Any, field: TrainField | None) -> Any:
    """A value as its field wants it: both tools turn text into numbers, and read ``yes`` and ``no`` as booleans."""
    if field is None or value in field.choices:
        return value
    if isinstance(value, str) and "bool" in field.kinds and value.lower() in _TRUTHS:
        return _TRUTHS[value.lower()]
    if isinstance(value, str) and "str" not in field.kinds and {"int", "float"} & set(field.kinds):
        return read_scalar(value)
    is_whole = isinstance(value, float) and value.is_integer()
    if is_whole and "int" in field.kinds and "float" not in field.kinds:
        return int(value)
    return "no" if value is False and "no" in field.choices else value


def put_sharding(draft: Draft) -> None:
    _deepspeed(draft)
    if draft.left.get("fsdp") or draft.left.get("fsdp_config"):
        _fsdp(draft)
    for key in ("deepspeed", "fsdp", "fsdp_config", "fsdp_version"):
        draft.take(key)


def _deepspeed(draft: Draft) -> None:
    said = draft.take("deepspeed")
    if not said:
        return
    zero = said.get("zero_optimization") if isinstance(said, dict) else None
    stage: Any = zero.get("stage") if isinstance(zero, dict) else None
    if isinstance(said, str):
        match = _STAGE.search(PurePath(said).name)
        stage = int(match[1]) if match else None
    if stage not in (1, 2, 3):
        draft.note("deepspeed", "its stage is not in the name. Write distributed.strategy: zero1, zero2 or zero3.")
        return
    draft.put("distributed.processes", "auto", "deepspeed")
    draft.put("distributed.strategy", f"zero{stage}", "deepspeed")
    if "offload" in str(said):
        draft.note("deepspeed", "offload is not mapped. Write distributed.offload.optimizer: true.")
    draft.remarks.append("distributed: of the DeepSpeed file, the stage alone is taken; the rest follows the recipe.")


def _fsdp(draft: Draft) -> None:
    config = draft.take("fsdp_config", {})
    config = dict(config) if isinstance(config, dict) else {}
    draft.put("distributed.processes", "auto", "fsdp")
    draft.put("distributed.strategy", "fsdp2", "fsdp")
    if str(draft.take("fsdp_version", config.pop("fsdp_version", config.pop("version", 2)))) == "1":
        draft.remarks.append("distributed: FSDP version 1 becomes fsdp2; there is no other.")
    for key, value in config.items():
        name = key.removeprefix("fsdp_")
        if name == "transformer_layer_cls_to_wrap":
            classes = value.split(",") if isinstance(value, str) else value
            draft.put("distributed.wrap_classes", classes, f"fsdp_config.{key}")
        elif name == "offload_params":
            if value:
                draft.put("distributed.offload.parameters", True, f"fsdp_config.{key}")
        elif value not in (None, True, "TRANSFORMER_BASED_WRAP", "FULL_SHARD"):
            draft.note(f"fsdp_config.{key}", "has no key; distributed.strategy: fsdp2 sets it by itself.")
