"""Each rank by itself: where it ran, its time, its waits, its memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from hf_efficient.account.memory import counted_categories
from hf_efficient.account.nanoseconds import add_ns, in_seconds
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.steps import RankSteps
from hf_efficient.records import PHASES, RankAccount

__all__ = ["rank_account", "rank_accounts"]


def rank_accounts(
    ranks: Sequence[RankSteps], first: Sequence[ProcessSpans], others: Mapping[int, Sequence[ProcessSpans]]
) -> list[RankAccount]:
    """In the order of the ranks.

    Args:
        ranks: the steps of each.
        first: the processes of rank 0.
        others: those of the other ranks; one that left no spans is known by its steps alone.
    """
    return [rank_account(rank, first if rank.rank == 0 else others.get(rank.rank, ())) for rank in ranks]


def rank_account(rank: RankSteps, lived: Sequence[ProcessSpans] = ()) -> RankAccount:
    """Of one rank.

    Args:
        rank: its steps.
        lived: its processes.
    """
    host: dict[str, int] = {}
    device: dict[str, int] = {}
    waited: dict[str, int] = {}
    for segment in rank.segments:
        add_ns(host, segment.sums.phase_ns)
        add_ns(device, segment.device_ns)
        add_ns(waited, segment.waited_ns)
    told = not device and ("communication" in host or bool(waited))  # beside a device the host hardly waits for ranks
    return RankAccount(
        rank=rank.rank,
        steps=sum(segment.steps for segment in rank.segments),
        last_step=rank.segments[-1].last_step if rank.segments else None,
        training_seconds=round(math.fsum(segment.training_seconds for segment in rank.segments), 9),
        host=_host(lived),
        device=_device(lived),
        phase_seconds=_in_order(in_seconds(host)) or None,
        waited_seconds=(host.get("communication", 0) + sum(waited.values())) / 1e9 if told else None,
        device_seconds=_in_order(in_seconds(device)) or None,
        peak_rss_bytes=_peak(lived, "peak_rss_bytes"),
        device_peak_allocated_bytes=_peak(lived, "device_peak_allocated_bytes"),
        device_peak_reserved_bytes=_peak(lived, "device_peak_reserved_bytes"),
        memory_categories=counted_categories(lived),
    )


def _host(lived: Sequence[ProcessSpans]) -> str | None:
    """Of the last process that told it: a resumed run may go on elsewhere."""
    names = (one.facts.get("system", {}).get("hostname") for one in reversed(lived))
    return next((str(name) for name in names if name), None)


def _device(lived: Sequence[ProcessSpans]) -> str | None:
    for one in reversed(lived):
        device = one.facts.get("settings", {}).get("device")
        if device:
            index = f" {device['index']}" if "index" in device else ""
            return f"{device['name']}{index}" if device.get("name") else f"{device['type']}{index}"
    return None


def _peak(lived: Iterable[ProcessSpans], name: str) -> int | None:
    return max((one.memory[name] for one in lived if name in one.memory), default=None)


def _in_order(phases: Mapping[str, float]) -> dict[str, float]:
    known = [name for name in PHASES if name in phases]
    return {name: phases[name] for name in (*known, *(name for name in phases if name not in PHASES))}
