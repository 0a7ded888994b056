"""How training is spread over ranks: a rank's share of it, what it sends to others, how much of that is waited for.

With n ranks, T trained and F frozen elements, and per element w (frozen: v) bytes of weight, g of gradient, o of
optimizer state and m of master copy (16-bit weights under DeepSpeed have one in fp32), a rank holds:

    strategy    parameters        gradients    optimizer
    none, ddp   T w + F v         T g          T (o + m)
    zero1       T w + F v         T g          T (o + m) / n
    zero2       T w + F v         T g / n      T (o + m) / n
    zero3       (T w + F v) / n   T g / n      T (o + m) / n
    fsdp2       (T w + F v) / n   T g / n      T (o + m) / n

Source: Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.1 and figure 1, with K = o + m; all parameters are
trained there. FSDP2 keeps all gradients, T g, from one micro-batch to the next; ``planning/ranks`` has buffers and
weights that are gathered for a while.

A ring of n ranks sends an array of S bytes in n pieces: a reduce-scatter passes each piece on n - 1 times, so a rank
sends (n - 1) / n S; an all-gather the same; an all-reduce is one after the other, 2 (n - 1) / n S. Bus bandwidth B is
defined so that the time is the bytes that a rank sends over B, whatever n: B = S / t * 2 (n - 1) / n for an all-reduce.
With a fixed overhead for each collective, ``t = overhead + sent / B``. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md.

What is sent in a step is in ``step_collectives``: weights that are sharded are gathered forward, and again backward but
for what is kept; frozen ones are never reduced. The ZeRO paper (arXiv 1910.02054, section 7) has a reduce-scatter in
ZeRO-1 and 2; DeepSpeed at commit edaa72212 does an all-reduce by default, of which a rank then uses its part
(``stage_1_and_2.py``, ``use_multi_rank_bucket_allreduce``): half as much again as DDP, not the same.

Exchange can hide behind computation, but for its first or last piece: of c seconds of communication in m messages, and
w seconds of computation beside which it may run (``overlap_window_seconds``), min(w, c (1 - 1 / m)). The weights of
ZeRO-1 and 2 are gathered at the end of the optimizer's step (``all_gather_dp_groups``), beside nothing. Left out: that
kernels which communicate slow those which compute down.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]
ZERO: tuple[Strategy, ...] = ("zero1", "zero2", "zero3")
"""Those of DeepSpeed."""
WEIGHTS_SHARDED: tuple[Strategy, ...] = ("zero3", "fsdp2")
"""Those under which a rank holds a part of the weights and gathers the rest."""


@dataclass(frozen=True)
class Sharding:
    """How it is spread; ``none`` is one process. ``offload_optimizer``: of DeepSpeed, its state and the step on the
    host. ``offload_parameters``: DeepSpeed's ``offload_param``, ZeRO-3 alone; FSDP2's ``CPUOffloadPolicy``, with
    gradients and state. ``overlap_comm``: takes a second bucket under ZeRO-1 and 2. DeepSpeed calls ``bucket_elements``
    ``reduce_bucket_size`` (transformers' ``auto``: hidden_size squared), the last three ``stage3_max_reuse_distance``,
    ``stage3_prefetch_bucket_size``, ``stage3_param_persistence_threshold``, up to which ZeRO-3 keeps weights."""

    strategy: Strategy
    ranks: int = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False
    to_disk: bool = False
    bucket_elements: int = 500_000_000
    overlap_comm: bool = False
    micro_batches: int = 1
    reuse_elements: int = 1_000_000_000
    prefetch_elements: int = 50_000_000
    persistent_elements: int = 100_000

    @property
    def whole_gradients(self) -> bool:
        """Whether a rank keeps the gradients of all trained weights from one micro-batch to the next. FSDP2 reduces
        those of the last one alone (``Accelerator.no_sync``, which transformers' Trainer uses)."""
        return self.micro_batches > 1 if self.strategy == "fsdp2" else self.strategy not in ("zero2", "zero3")

    @property
    def steps_on_host(self) -> bool:
        return self.offload_optimizer or (self.strategy == "fsdp2" and self.offload_parameters)


def shard_elements(strategy: Strategy, shapes: Iterable[tuple[int, ...]], ranks: int) -> int:
    """Elements of these parameters on the rank that holds most, padding included. ZeRO-1 and 2 pad all parameters
    together to a multiple of 2 n elements (DeepSpeed's ``nccl_start_alignment_factor``), ZeRO-3 pads each to n (its
    ``_padding_size``), FSDP2 each parameter's first dimension (torch's ``_fsdp_param.py``): with 8 ranks a LoRA factor
    of 4 x 4096 takes a row of 4096 on each of them, twice its even share."""
    counts = [(shape[0] if shape else 1, math.prod(shape[1:])) for shape in shapes]
    if strategy == "fsdp2":
        return sum(-(-rows // ranks) * rest for rows, rest in counts)
    if strategy == "zero3":
        return sum(-(-rows * rest // ranks) for rows, rest in counts)
    total = sum(rows * rest for rows, rest in counts)
    return -(-total // (2 * ranks)) * 2 if strategy in ZERO else total


@dataclass(frozen=True)
class ModelStates:
    """What there is to spread; bytes are per element, so that packed 4-bit weights hold half a byte and their scales.
    ``optimizer_bytes``: of optimizer state, 8 for AdamW in fp32. ``master_bytes``: of its own copy of a trained weight.
    ``largest_layer``: elements of the largest layer gathered at once, frozen ones included. ``staying``: elements that
    FSDP2 keeps gathered from forward to backward: final norm, head, shared embedding, rest. ``layer_uses``: of a
    layer's weights in a micro-batch: 2, or 3 under activation checkpointing. ``gathered_bytes``: of a gathered weight:
    FSDP2's ``param_dtype``, 2 where mixed precision stores fp32; None: as is."""

    trained: int
    frozen: int
    trained_bytes: float
    frozen_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    master_bytes: float = 0.0
    largest_layer: int = 0
    staying: int = 0
    gathered_bytes: float | None = None
    layer_uses: int = 2

    @property
    def weight_bytes(self) -> float:
        return self.trained * self.trained_bytes + self.frozen * self.frozen_bytes


def host_bytes(states: ModelStates, sharding: Sharding) -> int:
    """What a rank has offloaded to the host's memory or disk."""
    strategy, ranks = sharding.strategy, sharding.ranks
    shard, held = shard_elements(strategy, [(states.trained,)], ranks), 0.0
    optimizer = shard * (states.optimizer_bytes + states.master_bytes)
    if sharding.offload_optimizer:
        held += optimizer + shard * states.master_bytes
        # ZeRO-2 holds the shard's gradient once, in the dtype of the master copy where there is one.
        if strategy == "zero3" or (strategy == "zero2" and not states.master_bytes):
            held += shard * states.gradient_bytes
    if sharding.offload_parameters:
        held += shard * states.trained_bytes + -(-states.frozen // ranks) * states.frozen_bytes
        if strategy == "fsdp2":
            held += shard * states.gradient_bytes + optimizer
    return math.ceil(held)


def kept_elements(states: ModelStates, sharding: Sharding) -> int:
    """Elements of gathered weights that stay from the forward to the backward pass.

    Under FSDP2 the final norm and the head (accelerate 1.15, ``fsdp2_prepare_model``: ``reshard_after_forward`` is off
    for them and the root). ZeRO-3 keeps what is used again within ``reuse_elements``, counted in the parameters of
    every module that runs until then, as often as it runs (``partitioned_param_coordinator.py``): the head h twice, a
    layer u times (``layer_uses``). A layer with d elements of layers behind it comes again after u d + 2 h, so that the
    head stays, the last (``reuse_elements`` - 2 h) / u of the layers, and the layer at that border.
    """
    if sharding.strategy == "fsdp2":
        return states.staying
    beyond = sharding.reuse_elements - 2 * states.staying
    layers = states.largest_layer + beyond // states.layer_uses if beyond > 0 else 0
    head = states.staying if sharding.reuse_elements else 0
    return min(head + layers, states.trained + states.frozen)


DDP_BUCKET_BYTES = 25 << 20  # torch's bucket_cap_mb
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
    under DDP, of ``bucket_elements`` under ZeRO, and layers where weights are gathered, with one more for the rest.
    ZeRO-1 and 2 gather a parameter group at once, whatever its size (``all_gather_into_tensor_dp_groups``)."""
    strategy, micro_batches = sharding.strategy, sharding.micro_batches
    if sharding.ranks == 1 or strategy == "none":
        return ()
    gradients = states.trained * states.gradient_bytes
    buckets = -(-states.trained // max(sharding.bucket_elements, 1))
    times = 1 if sharding.whole_gradients else micro_batches
    if strategy in WEIGHTS_SHARDED:
        elements, cut = states.trained + states.frozen, layers + 1 if strategy == "fsdp2" else buckets
        weights = states.weight_bytes if states.gathered_bytes is None else elements * states.gathered_bytes
        kept = kept_elements(states, sharding) / max(elements, 1)
        made = [
            Collective("all_gather", "weights", weights, layers + 1, micro_batches),
            Collective("all_gather", "weights", weights * (1 - kept), layers, micro_batches),
            Collective("reduce_scatter", "gradients", gradients, cut, times),
        ]
    elif strategy == "ddp":
        made = [Collective("all_reduce", "gradients", gradients, math.ceil(gradients / DDP_BUCKET_BYTES), times)]
    else:
        weights = states.trained * states.trained_bytes
        made = [
            Collective("all_reduce", "gradients", gradients, buckets, times),
            Collective("all_gather", "weights", weights, _PARAMETER_GROUPS, 1),
        ]
    return tuple(one for one in made if one.payload_bytes > 0)


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
    """Seconds of a step's computation beside which communication may run (torch 2.13; DeepSpeed 0.19.8). Of DDP and of
    ZeRO-1's gradients (``reduce_ready_partitions_and_remove_grads``): the backward of the last micro-batch. Of ZeRO-2's
    gradients: every backward. Of ZeRO-3 and FSDP2: all but the optimizer's step, whose share is left in."""
    if sharding.strategy in ("zero1", "zero2") and not sharding.overlap_comm:
        return 0.0
    if sharding.strategy in ("ddp", "zero1"):
        return compute_seconds / sharding.micro_batches * BACKWARD_SHARE
    return compute_seconds * (BACKWARD_SHARE if sharding.strategy == "zero2" else 1.0)


def hidden_seconds(seconds: float, window_seconds: float, messages: int) -> float:
    """Seconds of communication that computation hides: all beside which it may run, but not the last message."""
    return min(window_seconds, seconds * (1 - 1 / messages)) if seconds > 0 else 0.0
