"""What a rank's step exchanges with other ranks and with the host, and how long it waits for that."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hf_efficient.estimate.communication import communication_seconds, exposed_seconds, step_collectives
from hf_efficient.estimate.overlap import overlap_share, overlap_window_seconds
from hf_efficient.estimate.parallelism import WEIGHTS_SHARDED, ZERO, Sharding, shard_elements
from hf_efficient.estimate.sharding import ModelStates, kept_elements
from hf_efficient.facts.accelerators import collective_bandwidth, collective_overhead, host_bandwidth
from hf_efficient.planning.rehearsed import Rank


@dataclass(frozen=True)
class Exchange:
    """Of an optimizer step.

    Attributes:
        seconds: in which the links are busy; None where no link of the device is known.
        exposed_seconds: of them, in which nothing is computed.
        notes: what is missing, and what is an estimate.
    """

    seconds: float | None
    exposed_seconds: float | None
    notes: tuple[str, ...] = ()


def exchange_of(rank: Rank, device: str, compute_seconds: float) -> Exchange:
    """Collectives beside computation, and transfers to and from the host beside nothing.

    Args:
        rank: of the training.
        device: name of the accelerator.
        compute_seconds: of the optimizer step.
    """
    sharding, states = rank.sharding, rank.states
    seconds = exposed = 0.0
    collectives = step_collectives(states, sharding, rank.layers)
    if collectives:
        bandwidth = collective_bandwidth(device, sharding.ranks)
        if bandwidth is None:
            return Exchange(None, None, ("no time: how fast several of it communicate is not known",))
        # The weights of ZeRO-1 and 2 are gathered by the optimizer's step, beside nothing.
        beside = [one for one in collectives if one.of == "gradients" or sharding.strategy in WEIGHTS_SHARDED]
        seconds, hidable = (
            communication_seconds(part, sharding.ranks, bandwidth.value, collective_overhead().value)
            for part in (collectives, beside)
        )
        messages = sum(one.messages * one.times for one in beside)
        share = overlap_share(hidable, overlap_window_seconds(sharding, compute_seconds), messages)
        exposed = seconds - hidable + exposed_seconds(hidable, share)
    moved = host_bytes_moved(states, sharding)
    if moved and sharding.to_disk:
        return Exchange(None, None, ("no time: the speed of the disk at distributed.offload.nvme_path is not known",))
    if moved:
        link = host_bandwidth(device)
        if link is None:
            return Exchange(None, None, ("no time: how fast it exchanges data with the host is not known",))
        seconds += moved / link.value
        exposed += moved / link.value
    return Exchange(seconds, exposed)


def host_bytes_moved(states: ModelStates, sharding: Sharding) -> float:
    """Bytes that a rank sends to its host, or on to its disk, and takes from there in an optimizer step.

    With the optimizer offloaded, its share of the gradients goes there and that of the weights comes back. With the
    weights offloaded, its share comes whenever they are gathered, and gradients go there.

    Hand-worked: ZeRO-2 with offload, 100 elements of 2 bytes, 2 ranks: 100 bytes of gradients down, 100 of weights up.
    """
    shard = shard_elements(sharding.strategy, [(states.trained,)], sharding.ranks)
    moved = 0.0
    if sharding.offload_optimizer:
        moved += shard * (states.gradient_bytes + states.trained_bytes)
    if sharding.offload_parameters:
        whole = replace(states, gathered_bytes=None)
        kept = kept_elements(whole, sharding) / max(1, whole.trained + whole.frozen)
        moved += whole.weight_bytes / sharding.ranks * (2 - kept) * sharding.micro_batches
        if sharding.strategy not in ZERO:
            moved += shard * states.gradient_bytes
    return moved
