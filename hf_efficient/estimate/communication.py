"""What ranks send to one another in an optimizer step, how long that takes, and how much of it is waited for.

A ring of n ranks sends an array of S bytes in n pieces: a reduce-scatter passes each piece on n - 1 times, so a rank
sends (n - 1) / n S; an all-gather the same; an all-reduce is one after the other, 2 (n - 1) / n S. Bus bandwidth B is
defined so that the time is the bytes that a rank sends over B, whatever n: B = S / t * 2 (n - 1) / n for an all-reduce.
With a fixed overhead for each collective, ``t = overhead + sent / B``.

Source: NCCL tests, ``doc/PERFORMANCE.md`` (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).

What is sent in a step of A micro-batches, T trained elements of g bytes of gradient, W bytes of weights as gathered:

    ddp     all-reduce of T g, once
    zero1   all-reduce of T g, once; all-gather of the trained weights, once
    zero2   all-reduce of T g, A times; all-gather of the trained weights, once
    zero3   all-gather of W, A times forward, and again backward but for what is kept; reduce-scatter of T g, A times
    fsdp2   as zero3, reduce-scatter once; final norm and head are gathered once

Frozen weights are gathered where they are sharded, and never reduced. The ZeRO paper (arXiv 1910.02054, section 7) has
a reduce-scatter in ZeRO-1 and 2; DeepSpeed at commit edaa72212 does an all-reduce by default, of which a rank then uses
its part (``stage_1_and_2.py``, ``use_multi_rank_bucket_allreduce``): half as much again as DDP, not the same.

Exchange can hide behind computation, but for its first or last piece. With c seconds of communication in m messages,
and w seconds of computation beside which it may run,

    hidden = min(w, c (1 - 1 / m))

It may run beside (torch 2.13; DeepSpeed 0.19.8):

    ddp           the backward of the last micro-batch, about two thirds of it
    zero1         gradients as ddp's (``reduce_ready_partitions_and_remove_grads``), with ``overlap_comm``
    zero2         gradients: the backward of every micro-batch, with ``overlap_comm``
    zero3, fsdp2  everything but the optimizer's step, whose share is left in

The weights of ZeRO-1 and 2 are gathered at the end of the optimizer's step (``all_gather_dp_groups``), beside nothing.

Left out: that kernels which communicate slow those which compute down.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hf_efficient.estimate.sharding import WEIGHTS_SHARDED, ModelStates, Sharding, kept_elements

_DDP_BUCKET_BYTES = 25 << 20  # torch's bucket_cap_mb
_PARAMETER_GROUPS = 2  # of the Trainer's optimizer: what decays, and what does not


@dataclass(frozen=True)
class Collective:
    """What ranks do together, several times in a step, on an array of ``payload_bytes`` S in so many messages."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    of: Literal["gradients", "weights"]
    payload_bytes: float
    messages: int
    times: int


def sent_bytes(collective: Collective, ranks: int) -> float:
    """Bytes that a rank sends for it in an optimizer step."""
    passes = 2 if collective.kind == "all_reduce" else 1
    return passes * (ranks - 1) / ranks * collective.payload_bytes * collective.times


def step_collectives(states: ModelStates, sharding: Sharding, layers: int = 1) -> tuple[Collective, ...]:
    """What the ranks do together in an optimizer step; nothing where there is one rank. Messages are buckets of 25 MiB
    under DDP, of ``bucket_elements`` under ZeRO, and layers where weights are gathered, with one more for what is in
    none. ZeRO-1 and 2 gather the weights of a parameter group at once, whatever its size
    (``all_gather_into_tensor_dp_groups``)."""
    if sharding.ranks == 1 or sharding.strategy == "none":
        return ()
    made = _sharded(states, sharding, layers) if sharding.strategy in WEIGHTS_SHARDED else _replicated(states, sharding)
    return tuple(one for one in made if one.payload_bytes > 0)


def _replicated(states: ModelStates, sharding: Sharding) -> Iterable[Collective]:
    gradients, weights = states.trained * states.gradient_bytes, states.trained * states.trained_bytes
    if sharding.strategy == "ddp":
        yield Collective("all_reduce", "gradients", gradients, math.ceil(gradients / _DDP_BUCKET_BYTES), 1)
        return
    times, buckets = 1 if sharding.whole_gradients else sharding.micro_batches, _buckets(states, sharding)
    yield Collective("all_reduce", "gradients", gradients, buckets, times)
    yield Collective("all_gather", "weights", weights, _PARAMETER_GROUPS, 1)


def _sharded(states: ModelStates, sharding: Sharding, layers: int) -> Iterable[Collective]:
    kept = kept_elements(states, sharding) / max(states.trained + states.frozen, 1)
    times = 1 if sharding.whole_gradients else sharding.micro_batches
    cut = layers + 1 if sharding.strategy == "fsdp2" else _buckets(states, sharding)
    yield Collective("all_gather", "weights", states.gathered_weight_bytes, layers + 1, sharding.micro_batches)
    yield Collective("all_gather", "weights", states.gathered_weight_bytes * (1 - kept), layers, sharding.micro_batches)
    yield Collective("reduce_scatter", "gradients", states.trained * states.gradient_bytes, cut, times)


def _buckets(states: ModelStates, sharding: Sharding) -> int:
    return -(-states.trained // max(sharding.bucket_elements, 1))


def communication_seconds(
    collectives: Iterable[Collective], ranks: int, bandwidth_bytes_per_second: float, latency_seconds: float = 0.0
) -> float:
    """Seconds of an optimizer step in which the links are busy: ``sum(sent / B + messages * times * latency)``."""
    return math.fsum(
        sent_bytes(one, ranks) / bandwidth_bytes_per_second + one.messages * one.times * latency_seconds
        for one in collectives
    )


BACKWARD_SHARE = 2 / 3
"""Of the FLOPs of a micro-batch: twice the forward's (Kaplan et al., arXiv 2001.08361, section 2.1)."""


def overlap_window_seconds(sharding: Sharding, compute_seconds: float) -> float:
    """Seconds of a step's computation beside which communication may run; of ZeRO-1 and 2, that of gradients alone."""
    if sharding.strategy in ("zero1", "zero2") and not sharding.overlap_comm:
        return 0.0
    if sharding.strategy in ("ddp", "zero1"):
        return compute_seconds / sharding.micro_batches * BACKWARD_SHARE
    return compute_seconds * (BACKWARD_SHARE if sharding.strategy == "zero2" else 1.0)


def hidden_seconds(seconds: float, window_seconds: float, messages: int) -> float:
    """Seconds of communication that computation hides: all beside which it may run, but not the last message."""
    return min(window_seconds, seconds * (1 - 1 / messages)) if seconds > 0 else 0.0
