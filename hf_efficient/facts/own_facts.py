"""What a row of a user's own facts must be.

A user's own accelerators and prices, beside the shipped ones.

They lie as ``accelerators.yaml`` and ``prices.yaml`` in the folder that ``$HF_EFFICIENT_FACTS`` names, else in
``~/.config/hf_efficient/facts``: rows as those of the shipped ``facts/``, of which only what is needed must be there.
A row of an accelerator takes the place of a shipped one of the same name; a price is preferred to all shipped ones of
the same accelerator and market.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from hf_efficient.errors import SetupError, first_line
from hf_efficient.facts.tables import config_dir, nearest

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, Field(min_length=1)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    source: str = "the user"
    read_at: str = ""
    date: datetime.date | str = ""


class _AcceleratorRow(_Row):
    name: _Name
    memory_gib: _Positive
    usable_gib: _Positive | None = None
    usable_source: _Name | None = None
    usable_date: datetime.date | str | None = None
    vendor: str = ""
    aliases: list[_Name] = []
    device_names: list[_Name] = []
    compute_capability: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    bandwidth_gb_per_second: _Positive | None = None
    tdp_watts: _Positive | None = None
    peak_tflops: dict[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"], _Positive] = {}


class _PriceRow(_Row):
    accelerator: _Name
    usd_per_gpu_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    provider: _Name = "own"
    market: Literal["on_demand", "spot"] = "on_demand"
    gpus: Annotated[int, Field(ge=1)] = 1
    product: str = ""


_MODELS: dict[str, type[_Row]] = {"accelerators": _AcceleratorRow, "prices": _PriceRow}


def checked_rows(table: str, rows: Sequence[Any], path: str, lines: Sequence[int]) -> list[dict[str, Any]]:
    """The rows with their defaults.

    Args:
        table: ``accelerators`` or ``prices``.
        rows: as the file has them.
        path: of the file.
        lines: that the rows begin at.

    Raises:
        SetupError: all that is wrong, with file, line, row and key.
    """
    model = _MODELS[table]
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for number, (row, line) in enumerate(zip(rows, lines, strict=True), start=1):
        where = f"{path}:{line}: row {number}"
        if not isinstance(row, dict):
            problems.append(f"{where}: is {row!r}; write `- ` and keys with values, as in the shipped {table}.yaml.")
            continue
        try:
            held = model.model_validate({str(key): value for key, value in row.items()})
        except ValidationError as error:
            problems += [f"{where}: {_words(one, model)}" for one in error.errors()]
            continue
        found.append({key: value for key, value in held.model_dump().items() if value is not None})
    if problems:
        raise SetupError("\n".join(problems))
    return found


def _words(error: ErrorDetails, model: type[_Row]) -> str:
    key = ".".join(str(part) for part in error["loc"] if part != "[key]")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return f"{key}: is missing; every row needs it."
    if kind == "extra_forbidden":
        near = nearest(key.replace("_", " "), [name.replace("_", " ") for name in model.model_fields])
        meant = f"Did you mean {near[0].replace(' ', '_')}?" if near else f"Write {', '.join(model.model_fields)}."
        return f"{key}: is no key of a row. {meant}"
    said = f"{key}: is {error['input']!r}"
    if kind in ("greater_than", "greater_than_equal"):
        least = context.get("gt", context.get("ge"))
        return f"{said}; write a number {'above' if kind == 'greater_than' else 'from'} {least:g}."
    if kind == "literal_error":
        return f"{said}; write {str(context['expected']).replace(chr(39), '')}."
    return f"{said}; {error['msg'][0].lower()}{error['msg'][1:]}."


OwnTable = Literal["accelerators", "prices"]
_TABLES: tuple[OwnTable, ...] = ("accelerators", "prices")
_VARIABLE = "HF_EFFICIENT_FACTS"


def own_facts_folder() -> Path | None:
    """Where this user's own facts are; None where there are none.

    Raises:
        SetupError: the folder that the variable names is not there, or holds none.
    """
    named = os.environ.get(_VARIABLE)
    folder = Path(named).expanduser() if named else config_dir() / "facts"
    held = [table for table in _TABLES if _file(folder, table).is_file()]
    if held or not named:
        return folder if held else None
    what = "holds neither accelerators.yaml nor prices.yaml" if folder.is_dir() else "is no folder"
    raise SetupError(f"{_VARIABLE}: {folder} {what}. Put one of them there, or unset the variable.")


def own_rows(folder: Path | None, table: OwnTable) -> list[dict[str, Any]]:
    """The rows of a table, checked, with what they leave out; none where there is no such file.

    Args:
        folder: from ``own_facts_folder``.
        table: which.

    Raises:
        SetupError: the file cannot be read, or rows are not as they must be: all of them, with line, row and key.
    """
    if folder is None or not _file(folder, table).is_file():
        return []
    path = _file(folder, table)
    try:
        text = path.read_text(encoding="utf-8")
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        held = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise SetupError(f"{path}: cannot be read: {_told(error)}") from error
    if held is None:
        return []
    if not isinstance(held, list):
        raise SetupError(f"{path}: is no list of rows. Each row begins with `- `, as in the shipped {table}.yaml.")

    return checked_rows(table, held, str(path), [part.start_mark.line + 1 for part in node.value])


def _told(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return first_line(error)
    return f"line {mark.line + 1}: {getattr(error, 'problem', None) or first_line(error)}"


def _file(folder: Path, table: OwnTable) -> Path:
    return folder / f"{table}.yaml"
