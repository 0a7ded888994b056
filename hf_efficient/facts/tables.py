"""What accelerators can do as their vendors state it, what kernels reach of that, and how fast they exchange data: the
fact files in ``data/`` and a user's own beside them, looked up by name; an absent name is never guessed.

A user's ``accelerators.yaml`` and ``prices.yaml`` lie in ``$HF_EFFICIENT_FACTS``, else
``~/.config/hf_efficient/facts``. Their rows are as the shipped ones, of which only what is needed must be there. They
replace an accelerator of the same name, and all prices of the same accelerator and market.
"""

import datetime
import difflib
import functools
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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
    return _held(table)


def key_table(tool: str) -> dict[str, Any]:
    """How the keys of another tool are called in a recipe; ``recipe_words``: what is said of wrong ones."""
    return _held(tool)


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


Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

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
    peak_tflops: dict[Dtype, _Positive] = {}


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


CPU = "cpu"
"""In place of an accelerator's name: this machine's CPU."""

USABLE_SHARE = 0.91
"""An estimate, of the stated memory, where what torch reports is not known: the smallest known share, the T4's."""

_BFLOAT16 = (8, 0)
"""The first compute capability whose tensor cores know it."""
_GIB = 2**30
_SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class Accelerator:
    """One model of accelerator, its figures as the vendor states them. ``device_names``: as torch spells it.
    ``usable_memory_bytes``: what torch reports as its total; where unknown, ``USABLE_SHARE`` of the stated.
    ``peak_flops_per_second``: dense FLOP/s by dtype (operations for int8), with accumulation in fp32; an unstated or
    unsupported dtype is absent. ``own``: the user wrote it."""

    name: str
    vendor: str
    device_names: tuple[str, ...]
    compute_capability: tuple[int, int] | None
    memory_bytes: int
    usable_memory_bytes: int
    bandwidth_bytes_per_second: float | None
    tdp_watts: float | None
    peak_flops_per_second: Mapping[str, float]
    source: str
    date: str
    aliases: tuple[str, ...] = ()
    own: bool = False
    usable_is_estimated: bool = False

    @property
    def lacks_bfloat16(self) -> bool:
        """Whether it is an NVIDIA device from before those whose tensor cores know bfloat16."""
        return self.compute_capability is not None and self.compute_capability < _BFLOAT16

    def peak(self, dtype: Dtype) -> float | None:
        return self.peak_flops_per_second.get(dtype)


def accelerators() -> tuple[Accelerator, ...]:
    """Those of the file, with the user's own in their place and behind them. ``SetupError``: these are wrong."""
    return _accelerators(own_facts_folder())


@functools.lru_cache(maxsize=8)
def _accelerators(own_folder: Path | None) -> tuple[Accelerator, ...]:
    known = {row["name"]: _of_row(row) for row in rows("accelerators")}
    for row in own_rows(own_folder, "accelerators"):
        known[next((name for name in known if plain(name) == plain(row["name"])), row["name"])] = _of_row(row, own=True)
    return tuple(known.values())


def _of_row(row: Mapping[str, Any], *, own: bool = False) -> Accelerator:
    bandwidth, tdp = row.get("bandwidth_gb_per_second"), row.get("tdp_watts")
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        device_names=tuple(row["device_names"]),
        compute_capability=tuple(row["compute_capability"]) if "compute_capability" in row else None,
        memory_bytes=round(row["memory_gib"] * _GIB),
        usable_memory_bytes=round(row.get("usable_gib", row["memory_gib"] * USABLE_SHARE) * _GIB),
        bandwidth_bytes_per_second=None if bandwidth is None else bandwidth * 1e9,
        tdp_watts=None if tdp is None else float(tdp),
        peak_flops_per_second={dtype: round(value * 1e12) for dtype, value in row["peak_tflops"].items()},
        source=row["source"],
        date=str(row["date"]),
        aliases=tuple(row.get("aliases", ())),
        own=own,
        usable_is_estimated="usable_gib" not in row,
    )


def accelerator(name: str) -> Accelerator:
    """Of a name, whatever its case and hyphens: ``H100 SXM``, ``a100-80gb-sxm``; ``SetupError`` names the nearest."""
    known = {plain(spelled): one for one in accelerators() for spelled in (one.name, *one.aliases)}
    found = known.get(plain(name)) or accelerator_of_device(name)
    if found is None:
        raise unknown("accelerator", name, (one.name for one in accelerators()))
    return found


def names_cpu(gpus: str | Sequence[str] | None) -> bool:
    """Whether a plan is for the CPU; ``SetupError`` where it is for GPUs as well."""
    names = [gpus] if isinstance(gpus, str) else gpus or []
    if not any(name.lower() == CPU for name in names):
        return False
    if len({name.lower() for name in names}) > 1:
        raise SetupError("cpu: is planned alone. Leave it out, or leave the GPUs out.")
    return True


def usable_gib(memory_gib: float) -> tuple[float, float]:
    """The least and the most that torch reports of GPUs that are sold with so much memory; else an estimate."""
    known = [one.usable_memory_bytes / _GIB for one in accelerators() if one.memory_bytes == round(memory_gib * _GIB)]
    estimated = memory_gib * USABLE_SHARE
    return min(known, default=estimated), max(known, default=estimated)


def accelerator_of_device(device_name: str) -> Accelerator | None:
    """The accelerator of a device's name in torch, compared whole; None where it is not in the table."""
    wanted = plain(device_name)
    return next((one for one in accelerators() if wanted in map(plain, one.device_names)), None)


def matmul_efficiency(held: Accelerator, dtype: Dtype) -> float:
    """The share of the dense peak that large matrix products reach. Measured in this dtype; else the share of another
    dtype of this accelerator, 16 bits first; else the median in 16 bits of GeForce cards, or of all others. Measured
    are a model's shapes, large squares, or the best shape. GeForce cards exceed 1: they clock higher than is stated."""
    known = _figures("matmul")
    own = [row for row in known if held.name in row["of"] and held.peak(row["dtype"])]
    if own:
        row = min(own, key=lambda row: (row["dtype"] != dtype, row["dtype"] not in _SIXTEEN_BITS))
        return row["measured_tflops"] * 1e12 / held.peak_flops_per_second[row["dtype"]]
    alike = [row for row in known if _is_geforce(row["of"][0]) == _is_geforce(held.name)]
    sixteen = [row for row in alike if row["dtype"] in _SIXTEEN_BITS]
    one_of_each = {row["of"][0]: row for row in reversed(sixteen)}  # the first row of each card
    peaks = ((row["measured_tflops"], accelerator(name).peak(row["dtype"])) for name, row in one_of_each.items())
    return statistics.median(reached * 1e12 / peak for reached, peak in peaks if peak)


def _is_geforce(name: str) -> bool:
    """``RTX 4090``; not ``RTX A6000``, ``RTX PRO 6000 Blackwell``, ``RTX 6000 Ada``."""
    return name.startswith("RTX ") and name.removeprefix("RTX ").isdigit()


def bandwidth_efficiency(held: Accelerator) -> float:
    """The share of the stated memory bandwidth that a copy on the device reaches; else the median of the others."""

    def stated(name: str) -> float | None:
        return (held if name == held.name else accelerator(name)).bandwidth_bytes_per_second

    return _share("bandwidth", held.name, stated)


def attention_efficiency(held: Accelerator) -> float:
    """The share of the dense 16-bit peak that fused attention (FlashAttention-2) reaches; always an estimate."""
    known = _figures("attention")
    own = [row["share"] for row in known if held.name in row["of"]]
    return own[0] if own else statistics.median(row["share"] for row in known)


def attention_backward_share() -> float:
    """What the backward of fused attention reaches of the forward's rate; an estimate."""
    return float(next(row["share"] for row in _figures("attention_backward")))


def overhead_seconds(figure: Literal["launch", "matmul_startup", "collective_overhead"]) -> float:
    """An estimate: of the host for a launch, of a CUDA device for a product, or of a collective beyond its bytes."""
    return next(row["microseconds"] for row in _figures(figure)) / 1e6


def collective_bandwidth(name: str, ranks: int) -> float | None:
    """Bus bandwidth of collectives among so many of an accelerator, bytes per second; None where no link is known.
    Stated, times the share that somebody reached on such an accelerator, or else the median share of those with a link
    of the same kind. Where each neighbour has a link of its own, fewer ranks use fewer of them."""
    link = next((row for row in rows("links") if name in row["of"]), None)
    if link is None:
        return None
    used = min(1.0, (ranks - 1) / link["neighbours"]) if "neighbours" in link else 1.0
    same_kind = (row for row in rows("links") if row["kind"] == link["kind"])
    alike = {one: row["gb_per_second"] * 1e9 for row in same_kind for one in row["of"]}
    return alike[name] * used * _share("collectives", name, alike.get)


def host_bandwidth(name: str) -> float | None:
    """Between an accelerator and the host, one direction, bytes per second; None where no link is known."""
    stated = {one: row["host_gb_per_second"] * 1e9 for row in rows("links") for one in row["of"]}
    return stated[name] * _share("host_link", name, stated.get) if name in stated else None


def _figures(figure: str) -> list[dict[str, Any]]:
    return [row for row in rows("efficiencies") if row["figure"] == figure]


def _share(figure: str, name: str, stated: Callable[[str], float | None]) -> float:
    """Measured over stated on this accelerator; else the median of those whose figure is stated, one for each row."""
    known = _figures(figure)
    own = next((row for row in known if name in row["of"]), None)
    own_stated = stated(name)
    if own is not None and own_stated:
        return own["measured_gb_per_second"] * 1e9 / own_stated
    pairs = [(row["measured_gb_per_second"] * 1e9, stated(row["of"][0])) for row in known]
    return statistics.median(measured / figure_stated for measured, figure_stated in pairs if figure_stated)
