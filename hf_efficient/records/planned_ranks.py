"""How a planned run is spread over several GPUs."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlannedRanks"]


@dataclass(frozen=True)
class PlannedRanks:
    """Several processes, one GPU each.

    Attributes:
        count: how many.
        strategy: ddp, zero1, zero2, zero3 or fsdp2.
        offloaded: to the host or its disk: optimizer, parameters.
        host_bytes: of the machine's memory, that what is offloaded takes, all ranks together.
        disk_bytes: the same of its NVMe disk.
    """

    count: int
    strategy: str
    offloaded: list[str]
    host_bytes: int
    disk_bytes: int = 0
