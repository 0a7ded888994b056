"""What a plan tells of its ranks."""

from __future__ import annotations

from hf_efficient.estimate.sharding import rank_bytes
from hf_efficient.planning.rehearsed import Rank
from hf_efficient.records.plan import PlannedRanks


def planned_ranks(rank: Rank | None) -> PlannedRanks | None:
    """How many, by which strategy, and what is offloaded to where; None of a process that trains alone."""
    if rank is None:
        return None
    sharding = rank.sharding
    offloaded = [name for name in ("optimizer", "parameters") if getattr(sharding, f"offload_{name}")]
    away = rank_bytes(rank.states, sharding).host_bytes * sharding.ranks
    host, disk = (0, away) if sharding.to_disk else (away, 0)
    return PlannedRanks(sharding.ranks, sharding.strategy, offloaded, host_bytes=host, disk_bytes=disk)
