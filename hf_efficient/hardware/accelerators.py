"""What accelerators can do, as their vendors state it (``facts/accelerators.yaml``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from hf_efficient.hardware.own_facts import own_facts_folder, own_rows
from hf_efficient.hardware.tables import plain, rows, unknown

__all__ = ["DTYPES", "USABLE_SHARE", "Accelerator", "Dtype", "accelerator", "accelerator_of_device", "accelerators"]

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
