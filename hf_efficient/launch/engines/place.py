"""Which machine this one is among those that train together, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.errors import SetupError
from hf_efficient.recipe.schema import Recipe

__all__ = ["DEFAULT_PORT", "NodePlace", "node_place"]

DEFAULT_PORT = 29500
"""torchrun's and accelerate's own."""


@dataclass(frozen=True)
class NodePlace:
    """One of several machines.

    Attributes:
        rank: from 0.
        address: of machine 0.
        port: to meet at.
    """

    rank: int
    address: str
    port: int


def node_place(recipe: Recipe, rank: int, main_address: str | None) -> NodePlace | None:
    """What ``--node-rank`` and ``--main-address`` say; None for a recipe of one machine.

    Raises:
        SetupError: they are missing, wrong, or the recipe has one machine.
    """
    nodes = recipe.distributed.nodes
    if nodes == 1:
        if main_address is None and rank == 0:
            return None
        given = "--main-address" if main_address is not None else "--node-rank"
        raise SetupError(f"{given}: distributed.nodes is 1; write distributed.nodes=N, or leave the flag out.")
    if main_address is None:
        raise SetupError(
            f"--main-address: is missing, and distributed.nodes is {nodes}. Start the same command on every machine, "
            f"with --node-rank 0 to {nodes - 1} and --main-address HOST:PORT of machine 0; `--on slurm` writes a job "
            "that does it."
        )
    if rank >= nodes:
        raise SetupError(f"--node-rank: is {rank}, but distributed.nodes is {nodes}: write 0 to {nodes - 1}.")
    host, port = _split(main_address)
    return NodePlace(rank, host, port)


def _split(address: str) -> tuple[str, int]:
    """``HOST``, ``HOST:PORT``, an IPv6 address in brackets with a port or alone."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]") or (":" in host and not host.startswith("[")):
        return address.strip("[]"), DEFAULT_PORT
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SetupError(f"--main-address: {port!r} is no port in {address!r}; write HOST:PORT, {host}:{DEFAULT_PORT}.")
    return host.strip("[]"), int(port)
