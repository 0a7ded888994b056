"""What accelerators can do as their vendors state it, what kernels reach of that, and how fast they exchange data."""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hf_efficient.errors import SetupError
from hf_efficient.facts.tables import own_facts_folder, own_rows, plain, rows, unknown

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

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
    peaks = {name: accelerator(name).peak(row["dtype"]) for name, row in one_of_each.items()}
    shares = (row["measured_tflops"] * 1e12 / peak for name, row in one_of_each.items() if (peak := peaks[name]))
    return statistics.median(shares)


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
    rows_alike = [row for row in rows("links") if row["kind"] == link["kind"]]
    alike = {one: row["gb_per_second"] * 1e9 for row in rows_alike for one in row["of"]}
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
