"""How much memory the device that trains has left, and what more rows, or kept activations, would take of it."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.diagnosis.case import Case
from hf_efficient.estimate.cuda_process import CONTEXT, nccl_bytes

__all__ = ["PERSISTENT", "MemoryRoom", "category_bytes", "memory_room", "position_bytes", "usable_bytes"]

PERSISTENT = ("weights", "adapter", "gradients", "optimizer_state")
"""What is there however large the micro-batch is."""

_MAY_FILL = 0.8
_TEMPORARY = 2.0


@dataclass(frozen=True)
class MemoryRoom:
    """Of one device; on a CPU, of the host.

    Attributes:
        device_bytes: all of it.
        held_bytes: at the peak, by this process; on a CPU by all processes.
        idle_bytes: nobody's at the peak.
        fillable_bytes: four fifths of them: what a change may take, by an estimate, and still be safe.
        source: of ``held_bytes``.
    """

    device_bytes: int
    held_bytes: int
    source: str

    @property
    def idle_bytes(self) -> int:
        """Nobody's at the peak."""
        return max(0, self.device_bytes - self.held_bytes)

    @property
    def fillable_bytes(self) -> int:
        """Four fifths of the idle ones."""
        return int(_MAY_FILL * self.idle_bytes)

    @property
    def share(self) -> float:
        """Of the device's memory that is held."""
        return self.held_bytes / self.device_bytes if self.device_bytes else 0.0


def usable_bytes(case: Case) -> int | None:
    """What tensors may take of a CUDA device: its memory less the CUDA context's, and NCCL's buffers (estimates)."""
    total = case.settings("device").get("memory_bytes")
    if not total or not case.on_cuda:
        return None
    return int(total) - CONTEXT.bytes - nccl_bytes(len(case.account.ranks))


def memory_room(case: Case) -> MemoryRoom | None:
    """None where the device's memory, or what was held of it, is not known.

    A CUDA device: what torch's allocator reserved at its peak, and what the process holds beside it. A CPU: the host's
    memory less what was available of it at the least.
    """
    if case.on_cuda:
        usable, reserved = usable_bytes(case), case.account.memory.device_peak_reserved_bytes
        if usable is None or reserved is None:
            return None
        return MemoryRoom(usable, reserved, "run.json: memory.device_peak_reserved_bytes")
    total = case.settings("device").get("memory_bytes")
    if not total:
        return None
    series = case.series.system.host_available_bytes.low if case.series is not None else []
    available = [value for value in series if value is not None]
    if available:
        return MemoryRoom(int(total), int(total - min(available)), "system.jsonl: host_available_bytes")
    resident = case.account.memory.peak_rss_bytes
    return None if resident is None else MemoryRoom(int(total), resident, "run.json: memory.peak_rss_bytes")


def category_bytes(case: Case, *names: str) -> int | None:
    """Of these kinds of tensor together; None where none of them was counted."""
    found = [one.bytes for one in case.account.memory.categories if one.name in names]
    return sum(found) if found else None


def position_bytes(case: Case) -> tuple[float, int] | None:
    """What each position of a micro-batch takes at the peak, and how many the largest micro-batch had.

    On a CUDA device the measured peak without what is there for any micro-batch; on a CPU, whose peak holds the
    libraries too, twice what a forward keeps for its backward, whose gradients and temporary tensors come on top.
    None where it was not counted.
    """
    positions = case.facts.get("memory", {}).get("positions")
    kept = category_bytes(case, "activations", "logits")
    if not positions or kept is None:
        return None
    peak, persistent = case.account.memory.device_peak_allocated_bytes, category_bytes(case, *PERSISTENT)
    if case.on_cuda and peak is not None and persistent is not None:
        return max(peak - persistent, kept) / positions, int(positions)
    return _TEMPORARY * kept / positions, int(positions)
