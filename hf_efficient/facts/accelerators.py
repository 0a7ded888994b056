"""What accelerators can do, as their vendors state it (``facts/accelerators.yaml``).

What kernels reach of an accelerator's stated figures, as published (``facts/efficiencies.yaml``).

How fast accelerators of one machine exchange data, with each other and with the host (``facts/links.yaml``).
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hf_efficient.facts.own_facts import own_facts_folder, own_rows
from hf_efficient.facts.tables import plain, rows, unknown

Dtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

USABLE_SHARE = 0.91
"""An estimate, of the stated memory, where what torch reports is not known: the smallest known share, the T4's."""

_BFLOAT16 = (8, 0)
"""The first compute capability whose tensor cores know it."""
_GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """One model of accelerator.

    Attributes:
        name: the name it has here.
        vendor: who makes it.
        device_names: what ``torch.cuda.get_device_name()`` returns for it.
        compute_capability: of an NVIDIA device, major and minor; None of another.
        memory_bytes: device memory, as the vendor states it.
        usable_memory_bytes: what torch reports as its total; where that is not known, ``USABLE_SHARE`` of the stated.
        bandwidth_bytes_per_second: of the device memory; None where unknown.
        tdp_watts: board power; None where unknown.
        peak_flops_per_second: dense FLOP/s by dtype (operations per second for int8), with accumulation in fp32; a
            dtype that is not stated or not supported is absent.
        source: the vendor's document.
        read_at: where its figures were read.
        date: the day they were read.
        aliases: other names that are understood.
        own: whether the user wrote it.
        usable_source: where ``usable_memory_bytes`` was read; empty where it is an estimate.
        usable_date: the day it was read.
    """

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
    read_at: str
    date: str
    aliases: tuple[str, ...] = ()
    own: bool = False
    usable_source: str = ""
    usable_date: str = ""

    @property
    def usable_is_estimated(self) -> bool:
        """Whether nobody has told what torch reports of it."""
        return not self.usable_source

    @property
    def lacks_bfloat16(self) -> bool:
        """Whether it is an NVIDIA device from before those whose tensor cores know bfloat16."""
        return self.compute_capability is not None and self.compute_capability < _BFLOAT16

    def peak(self, dtype: Dtype) -> float | None:
        """Dense FLOP/s in a dtype; None where unknown."""
        return self.peak_flops_per_second.get(dtype)


def accelerators() -> tuple[Accelerator, ...]:
    """All that are known: those of the file in its order, or the user's own in their place, then the user's others.

    Raises:
        SetupError: the user's own facts are not as they must be.
    """
    return _accelerators(own_facts_folder())


@functools.lru_cache(maxsize=8)
def _accelerators(own_folder: Path | None) -> tuple[Accelerator, ...]:
    known = {row["name"]: _of_row(row) for row in rows("accelerators")}
    for row in own_rows(own_folder, "accelerators"):
        known[next((name for name in known if plain(name) == plain(row["name"])), row["name"])] = _of_row(row, own=True)
    return tuple(known.values())


def _of_row(row: Mapping[str, Any], *, own: bool = False) -> Accelerator:
    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        device_names=tuple(row["device_names"]),
        compute_capability=tuple(row["compute_capability"]) if "compute_capability" in row else None,
        memory_bytes=round(row["memory_gib"] * _GIB),
        usable_memory_bytes=round(row.get("usable_gib", row["memory_gib"] * USABLE_SHARE) * _GIB),
        bandwidth_bytes_per_second=_scaled(row.get("bandwidth_gb_per_second"), 1e9),
        tdp_watts=_scaled(row.get("tdp_watts"), 1.0),
        peak_flops_per_second={dtype: round(value * 1e12) for dtype, value in row["peak_tflops"].items()},
        source=row["source"],
        read_at=row["read_at"],
        date=str(row["date"]),
        aliases=tuple(row.get("aliases", ())),
        own=own,
        usable_source=row.get("usable_source", row["source"]) if "usable_gib" in row else "",
        usable_date=str(row.get("usable_date", row["date"])) if "usable_gib" in row else "",
    )


def accelerator(name: str) -> Accelerator:
    """The accelerator of a name, whatever its case, hyphens and underscores: ``H100 SXM``, ``a100-80gb-sxm``.

    Raises:
        SetupError: no accelerator has that name; names the nearest.
    """
    known = {plain(spelled): one for one in accelerators() for spelled in (one.name, *one.aliases)}
    found = known.get(plain(name)) or accelerator_of_device(name)
    if found is None:
        raise unknown("accelerator", name, (one.name for one in accelerators()))
    return found


def accelerator_of_device(device_name: str) -> Accelerator | None:
    """The accelerator that ``torch.cuda.get_device_name()`` names; None where it is not in the table.

    The name is compared whole: ``NVIDIA A100-SXM4-40GB MIG 1g.5gb`` is a slice and has no row, nor has a laptop part.
    """
    wanted = plain(device_name)
    return next((one for one in accelerators() if wanted in map(plain, one.device_names)), None)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


_SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class Reached:
    """A figure and how far to trust it.

    Attributes:
        value: a share of the stated figure, or seconds.
        estimated: nobody measured it on this accelerator and in this dtype, or the source gives a range.
        source: who published it and when it was read, or what it was put together from.
    """

    value: float
    estimated: bool
    source: str


def matmul_efficiency(held: Accelerator, dtype: Dtype) -> Reached:
    """The share of the dense peak that large matrix products reach.

    Measured in this dtype; or else the share of another dtype of this accelerator, 16 bits first; or else the median of
    all accelerators in 16 bits. The last two are estimates. What is measured is the best of many shapes, or large
    squares: other shapes reach less. GeForce cards may exceed 1, as they clock higher than is stated.
    """
    own = [row for row in _rows("matmul") if held.name in row["of"] and held.peak(row["dtype"])]
    wanted = sorted(own, key=lambda row: (row["dtype"] != dtype, row["dtype"] not in _SIXTEEN_BITS))
    if wanted:
        row = wanted[0]
        other = row["dtype"] != dtype
        told = f"{row['dtype']} in place of {dtype}: " if other else ""
        return Reached(_matmul_share(row, held), other, told + _source(row))
    sixteen = [row for row in _rows("matmul") if row["dtype"] in _SIXTEEN_BITS]
    one_for_each = {row["of"][0]: row for row in reversed(sixteen)}  # the first of each card
    return _median(one_for_each.values(), _matmul_share)


def bandwidth_efficiency(held: Accelerator) -> Reached:
    """The share of the stated memory bandwidth that a copy on the device reaches; else the median of the others."""
    own = [row for row in _rows("bandwidth") if held.name in row["of"] and held.bandwidth_bytes_per_second]
    if own:
        return Reached(_bandwidth_share(own[0], held), False, _source(own[0]))
    return _median(_rows("bandwidth"), _bandwidth_share)


def attention_efficiency(held: Accelerator) -> Reached:
    """The share of the dense 16-bit peak that fused attention (FlashAttention-2) reaches; always an estimate."""
    own = [row for row in _rows("attention") if held.name in row["of"]]
    if own:
        return Reached(own[0]["share"], True, _source(own[0]))
    return _median(_rows("attention"), lambda row, _: float(row["share"]))


def launch_overhead(device_type: Literal["cuda", "cpu"]) -> Reached:
    """Seconds of the host for each operator that eager torch launches, on a CPU: that it dispatches."""
    return _seconds("launch", device_type)


def matmul_startup() -> Reached:
    """Seconds of a CUDA device for each product, beyond its FLOPs at the rate of large ones."""
    return _seconds("matmul_startup", "cuda")


@functools.lru_cache(maxsize=8)
def _rows(figure: str) -> tuple[dict[str, Any], ...]:
    return tuple(row for row in rows("efficiencies") if row["figure"] == figure)


def _seconds(figure: str, device_type: str) -> Reached:
    row = next(row for row in _rows(figure) if device_type in row["of"])
    return Reached(row["microseconds"] / 1e6, row["estimated"], _source(row))


def _matmul_share(row: dict[str, Any], held: Accelerator) -> float:
    return float(row["measured_tflops"] * 1e12 / held.peak_flops_per_second[row["dtype"]])


def _bandwidth_share(row: dict[str, Any], held: Accelerator) -> float:
    assert held.bandwidth_bytes_per_second is not None
    return float(row["measured_gb_per_second"] * 1e9 / held.bandwidth_bytes_per_second)


def _median(known: Iterable[dict[str, Any]], share: Callable[[dict[str, Any], Accelerator], float]) -> Reached:
    """Of one share per row: the cards of a row are one measurement."""
    shares = [share(row, accelerator(row["of"][0])) for row in known]
    return Reached(statistics.median(shares), True, f"the median of {len(shares)} published figures of other cards")


def _source(row: dict[str, Any]) -> str:
    return f"{row['source']} ({row['date']})"


@dataclass(frozen=True)
class Link:
    """Of one accelerator.

    Attributes:
        kind: nvlink, xgmi or pcie.
        bytes_per_second: in one direction, with all others together, as stated.
        host_bytes_per_second: in one direction, with the host, as stated.
        neighbours: that each have a link of their own; None where all share one way.
        source: who published it, and when it was read.
    """

    kind: str
    bytes_per_second: float
    host_bytes_per_second: float
    neighbours: int | None
    source: str


def link_of(name: str) -> Link | None:
    """The link of an accelerator by its name; None where none is known."""
    row = next((row for row in _table("links") if name in row["of"]), None)
    if row is None:
        return None
    return Link(
        kind=row["kind"],
        bytes_per_second=row["gb_per_second"] * 1e9,
        host_bytes_per_second=row["host_gb_per_second"] * 1e9,
        neighbours=row.get("neighbours"),
        source=f"{row['source']} ({row['date']})",
    )


def collective_bandwidth(name: str, ranks: int) -> Reached | None:
    """Bus bandwidth of collectives among so many of an accelerator, bytes per second; None where no link is known.

    Stated, times the share that somebody reached on such an accelerator, or else the median share of those with a link
    of the same kind. Where each neighbour has a link of its own, fewer ranks use fewer of them.

    Hand-worked: eight H100 SXM, 450 GB/s stated, 335.2 reached. Two MI300X, 448 / 7 = 64 stated, of which 312.9 / 448
    are reached: 44.7 GB/s.
    """
    link = link_of(name)
    if link is None:
        return None
    used = 1.0 if link.neighbours is None else min(1.0, (ranks - 1) / link.neighbours)
    share = _share("collectives", name, lambda held: held.bytes_per_second, link.kind)
    return Reached(link.bytes_per_second * used * share.value, share.estimated, share.source)


def host_bandwidth(name: str) -> Reached | None:
    """Between an accelerator and the host, one direction, bytes per second; None where no link is known."""
    link = link_of(name)
    if link is None:
        return None
    share = _share("host_link", name, lambda held: held.host_bytes_per_second, None)
    return Reached(link.host_bytes_per_second * share.value, share.estimated, share.source)


def collective_overhead() -> Reached:
    """Seconds of each collective beyond its bytes; an estimate."""
    row = next(row for row in _table("efficiencies") if row["figure"] == "collective_overhead")
    return Reached(row["microseconds"] / 1e6, True, f"{row['source']} ({row['date']})")


def _share(figure: str, name: str, stated: Callable[[Link], float], kind: str | None) -> Reached:
    """What is reached of what is stated: of this accelerator, or the median of those of the same kind."""
    known = [row for row in _table("efficiencies") if row["figure"] == figure]
    own = [row for row in known if name in row["of"]]
    if own:
        return Reached(_reached(own[0], stated), False, f"{own[0]['source']} ({own[0]['date']})")
    alike = [row for row in known if kind is None or _link(row).kind == kind]
    shares = [_reached(row, stated) for row in alike]
    return Reached(statistics.median(shares), True, f"the median of {len(shares)} published figures of other cards")


def _reached(row: dict[str, Any], stated: Callable[[Link], float]) -> float:
    return float(row["measured_gb_per_second"] * 1e9 / stated(_link(row)))


def _link(row: dict[str, Any]) -> Link:
    link = link_of(row["of"][0])
    assert link is not None
    return link


@functools.lru_cache(maxsize=2)
def _table(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(rows(name))
