"""The fact files in ``data/`` and a user's own beside them, looked up by name; an absent name is never guessed.

A user's ``accelerators.yaml`` and ``prices.yaml`` lie in ``$HF_EFFICIENT_FACTS``, else
``~/.config/hf_efficient/facts``. Their rows are as the shipped ones, of which only what is needed must be there. They
replace an accelerator of the same name, and all prices of the same accelerator and market.
"""

import datetime
import difflib
import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from hf_efficient.errors import SetupError, first_line

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one that is built on libyaml, where PyYAML has it: a tenth of the time."""
_FOLDER = Path(__file__).with_name("data")
_VARIABLE = "HF_EFFICIENT_FACTS"


def cache_dir() -> Path:
    """The folder of everything that can be made again: ``$HF_EFFICIENT_CACHE``, else ``~/.cache/hf_efficient``."""
    named = os.environ.get("HF_EFFICIENT_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hf_efficient"


@functools.cache
def _held(table: str) -> Any:
    with (_FOLDER / f"{table}.yaml").open(encoding="utf-8") as file:
        return yaml.load(file, Loader=_LOADER)


def rows(table: str) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = _held(table)
    return held


def key_table(tool: str) -> dict[str, Any]:
    """How the keys of another tool are called in a recipe; ``recipe_words``: what is said of wrong ones."""
    held: dict[str, Any] = _held(tool)
    return held


def plain(name: str) -> str:
    """A name as it is compared: lower case, words parted by one space (``A100-80GB_SXM`` is ``a100 80gb sxm``)."""
    return " ".join(name.lower().replace("-", " ").replace("_", " ").split())


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Those of the known names that hold the wanted one, else the three most alike; empty where none is near."""
    spelled = {plain(one): one for one in known}
    wanted = plain(name)
    holding = [one for one in spelled if wanted and wanted in one]
    return [spelled[one] for one in holding or difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.5)]


def unknown(what: str, name: str, known: Iterable[str], remedy: str = "") -> SetupError:
    """The error for a name that a table does not hold: it names the nearest ones, or all where none is near."""
    names = list(known)
    close = nearest(name, names)
    hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(names)}."
    return SetupError(" ".join(part for part in (f"{name!r} is no {what} with known figures.", hint, remedy) if part))


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


_OWN_TABLES: dict[str, type[_Row]] = {"accelerators": _AcceleratorRow, "prices": _PriceRow}


def own_facts_folder() -> Path | None:
    """Where this user's own facts are, if any. Raises ``SetupError``: the folder that the variable names holds none."""
    named = os.environ.get(_VARIABLE)
    folder = Path(named or f"{os.environ.get('XDG_CONFIG_HOME') or '~/.config'}/hf_efficient/facts").expanduser()
    if any((folder / f"{table}.yaml").is_file() for table in _OWN_TABLES):
        return folder
    if not named:
        return None
    what = "holds neither accelerators.yaml nor prices.yaml" if folder.is_dir() else "is no folder"
    raise SetupError(f"{_VARIABLE}: {folder} {what}. Put one of them there, or unset the variable.")


def own_rows(folder: Path | None, table: Literal["accelerators", "prices"]) -> list[dict[str, Any]]:
    """The checked rows of a table in ``own_facts_folder()``, with the defaults of what they leave out. Raises
    ``SetupError``: the file cannot be read, or rows are wrong: all of them, with row and key."""
    path = None if folder is None else folder / f"{table}.yaml"
    if path is None or not path.is_file():
        return []
    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or first_line(error)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise SetupError(f"{path}: cannot be read: {where}{reason}") from error
    model = _OWN_TABLES[table]
    rows_of: TypeAdapter[list[_Row]] = TypeAdapter(list[model])  # type: ignore[valid-type]
    try:
        checked = rows_of.validate_python([] if held is None else held)
    except ValidationError as error:
        raise SetupError("\n".join(f"{path}: {_problem(one, model)}" for one in error.errors())) from error
    return [row.model_dump(exclude_none=True) for row in checked]


def _problem(error: ErrorDetails, model: type[_Row]) -> str:
    kind = error["type"]
    if kind == "list_type":
        return "is no list of rows. Each row begins with `- `, as in the shipped files."
    number, *keys = error["loc"]
    row, key = f"row {int(number) + 1}", ".".join(str(part) for part in keys if part != "[key]")
    if kind == "model_type":
        return f"{row}: is {error['input']!r}; write `- ` and keys with values, as in the shipped files."
    if kind == "missing":
        return f"{row}: {key}: is missing; every row needs it."
    if kind == "extra_forbidden":
        near = nearest(key, model.model_fields)
        meant = f"Did you mean {near[0]}?" if near else f"Write {', '.join(model.model_fields)}."
        return f"{row}: {key}: is no key of a row. {meant}"
    return f"{row}: {key}: is {error['input']!r}; {error['msg'][0].lower()}{error['msg'][1:]}."
