"""How a plan is spread over several GPUs, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records.planned_ranks import PlannedRanks
from hf_efficient.units import size

__all__ = ["offload_figure", "offloaded_label", "rank_renderables", "strategy_label"]

_NAMES = {"ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "fsdp2": "FSDP2"}
_OFFLOADED = {"optimizer": "optimizer state", "parameters": "weights"}


def rank_renderables(ranks: PlannedRanks | None) -> Iterator[RenderableType]:
    """How many, by which strategy, and what the host holds; nothing for one process alone."""
    if ranks is None:
        return
    gpus = f"{ranks.count} GPU" if ranks.count == 1 else f"{ranks.count} GPUs"
    yield Text(f"On {gpus} with {strategy_label(ranks.strategy)}; memory is that of each.")
    if ranks.offloaded:
        what = offloaded_label(ranks.offloaded)
        label, held = offload_figure(ranks)
        yield Text(f"{label}: {held} in the machine for the {what} of all.")


def offload_figure(ranks: PlannedRanks) -> tuple[str, str]:
    """Where it lies what is offloaded, and how much of it."""
    if ranks.disk_bytes:
        return "NVMe disk", size(ranks.disk_bytes)
    return "Host memory", size(ranks.host_bytes)


def strategy_label(name: str) -> str:
    """A strategy as its makers write it."""
    return _NAMES.get(name, name)


def offloaded_label(offloaded: Sequence[str]) -> str:
    """What is offloaded, in words."""
    return " and ".join(_OFFLOADED.get(one, one) for one in offloaded)
