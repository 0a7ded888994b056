"""Which processes a recipe is run by, on which machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_efficient.launch.engines.place import NodePlace
from hf_efficient.recipe.schema import Recipe

__all__ = ["Engine", "Layout", "layout_of", "strategy_of"]

Engine = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]


@dataclass(frozen=True)
class Layout:
    """The processes of a launch, and which of its machines this one is.

    Attributes:
        nodes: machines.
        processes: on each of them.
        cores: processor cores that the processes of a machine share.
        node_rank: of this machine, from 0.
        address: host name or IP of machine 0, which the others meet; None for one machine.
        port: that they meet at; None for one machine, where the launcher takes one.
    """

    nodes: int
    processes: int
    cores: int
    node_rank: int = 0
    address: str | None = None
    port: int | None = None

    @property
    def world_size(self) -> int:
        """Processes on all machines."""
        return self.nodes * self.processes


def layout_of(recipe: Recipe, *, device_count: int, cores: int, place: NodePlace | None = None) -> Layout:
    """The processes that a recipe asks for.

    Args:
        recipe: names them.
        device_count: accelerators of this machine, for ``distributed.processes: auto``.
        cores: processor cores of this machine that the processes may use.
        place: of this machine among several; None: it is the only one.
    """
    wanted, nodes = recipe.distributed.processes, recipe.distributed.nodes
    processes = max(1, device_count) if wanted == "auto" else wanted
    if place is None:
        return Layout(nodes, processes, cores)
    return Layout(nodes, processes, cores, place.rank, place.address, place.port)


def strategy_of(recipe: Recipe, world_size: int) -> Engine:
    """The strategy by name. ``auto`` is none for one process and DDP for more; DDP of one process is none, which
    accelerate would refuse to start as ``--multi_gpu``.
    """
    strategy = recipe.distributed.strategy
    if strategy == "auto" or strategy == "ddp":
        return "none" if world_size == 1 else "ddp"
    return strategy
