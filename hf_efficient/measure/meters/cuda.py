"""Which CUDA devices this process computes on, as torch knows them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["CudaDevice", "cuda_devices", "current_device"]


@dataclass(frozen=True)
class CudaDevice:
    """A device by every name that it has.

    Attributes:
        index: torch's, which counts what ``CUDA_VISIBLE_DEVICES`` leaves.
        name: the vendor's.
        uuid: as NVML spells it, ``GPU-...``; None where torch does not tell.
        pci: ``00000000:3B:00.0``; None where torch does not tell.
        cuda: False for a GPU that torch drives by ROCm.
    """

    index: int
    name: str
    uuid: str | None
    pci: str | None
    cuda: bool = True


def current_device() -> int | None:
    """The device of the thread that asks; None where this process has not started CUDA. Starts nothing."""
    torch = sys.modules.get("torch")
    return int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else None


def cuda_devices(current: int | None) -> list[CudaDevice]:
    """Those that this process computes on; starts nothing, and waits for no device.

    One of several processes that train together has its own. A process by itself may spread a model, or its batches,
    over all that it sees: those on which torch holds memory.

    Args:
        current: that of the training thread; each thread has its own, so this one cannot ask.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    if current is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return [_described(torch, current)]
    seen = range(torch.cuda.device_count())
    return [_described(torch, index) for index in seen if index == current or _holds_memory(torch, index)]


def _holds_memory(torch: Any, index: int) -> bool:
    try:
        return bool(torch.cuda.memory_reserved(index) > 0)
    except RuntimeError:  # somebody else's allocator, which keeps no books
        return False


def _described(torch: Any, index: int) -> CudaDevice:
    facts = torch.cuda.get_device_properties(index)
    uuid, bus = getattr(facts, "uuid", None), getattr(facts, "pci_bus_id", None)
    pci = None
    if bus is not None:
        pci = f"{getattr(facts, 'pci_domain_id', 0):08X}:{bus:02X}:{getattr(facts, 'pci_device_id', 0):02X}.0"
    if uuid is not None:
        uuid = str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return CudaDevice(index, facts.name, uuid, pci, cuda=torch.version.hip is None)
