"""Copies by direction, and from and to which kind of the host's memory."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np

from hf_efficient.records.trace_kernels import CopyKind
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.table import Ints
from hf_efficient.trace.work import DeviceWork

__all__ = ["copy_kinds", "copy_of_name"]

SMALL_COPY_BYTES = 64 << 10
_DIRECTION = re.compile(r"\b([HDAP])to([HDAP])\b")
_SPELLED = {
    "HostToDevice": "HtoD", "DeviceToHost": "DtoH", "DeviceToDevice": "DtoD", "PeerToPeer": "PtoP",
}  # fmt: skip

HostMemory = Literal["pinned", "pageable"] | None


def copy_kinds(work: DeviceWork) -> tuple[CopyKind, ...]:
    """The copies of a device, the direction that takes longest first."""
    copies = work.only(work.events.kind[work.rows] == Kind.COPY)
    names = work.events.names
    kinds = [copy_of_name(names[name]) for name in work.events.name[copies.rows].tolist()]
    found = [_kind(copies.only(np.array([one == kind for one in kinds])), *kind) for kind in dict.fromkeys(kinds)]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def copy_of_name(name: str) -> tuple[str, HostMemory]:
    """``Memcpy HtoD (Pageable -> Device)``: ``("HtoD", "pageable")``; what a name does not tell is unknown, or None."""
    told = _DIRECTION.search(name)
    direction = told[0] if told else next((short for long, short in _SPELLED.items() if long in name), "unknown")
    if "Pageable" in name:
        return direction, "pageable"
    return direction, "pinned" if "Pinned" in name else None


def _kind(copies: DeviceWork, direction: str, host_memory: HostMemory) -> CopyKind:
    lengths = (copies.end - copies.start) / 1e6
    told = _bytes(copies)
    known = told >= 0
    calls = np.unique(copies.calls[copies.calls >= 0])
    timed = float(lengths[known].sum())
    return CopyKind(
        direction=direction,
        host_memory=host_memory,
        count=len(copies),
        seconds=float(lengths.sum()),
        bytes=int(told[known].sum()) if known.any() else None,
        untold_bytes_count=int((~known).sum()),
        bytes_per_second=float(told[known].sum()) / timed if timed else None,
        small_count=int((told[known] <= SMALL_COPY_BYTES).sum()),
        call_seconds=float((copies.events.end[calls] - copies.events.start[calls]).sum()) / 1e6 if len(calls) else None,
    )


def _bytes(copies: DeviceWork) -> Ints:
    """As the copy tells, or (ROCm) the call that submitted it; -1: neither."""
    own = copies.events.bytes[copies.rows]
    return np.where((own < 0) & (copies.calls >= 0), copies.events.bytes[np.maximum(copies.calls, 0)], own)
