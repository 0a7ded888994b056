"""How training is spread over ranks: the strategy and its settings, and the share of parameters that a rank holds.

What a rank holds of parameters, gradients and optimizer state when they are spread over ranks.

With n ranks, T trained and F frozen elements, and per element w (frozen: v) bytes of weight, g of gradient, o of
optimizer state and m of master copy (16-bit weights under DeepSpeed have one in fp32):

    strategy    parameters        gradients    optimizer
    none, ddp   T w + F v         T g          T (o + m)
    zero1       T w + F v         T g          T (o + m) / n
    zero2       T w + F v         T g / n      T (o + m) / n
    zero3       (T w + F v) / n   T g / n      T (o + m) / n
    fsdp2       (T w + F v) / n   T g / n      T (o + m) / n

Source: Rajbhandari et al., "ZeRO", arXiv 1910.02054, section 3.1 and figure 1, with K = o + m; all parameters are
trained there. DeepSpeed's ``estimate_zero2_model_states_mem_needs`` (2 P + 18 P / n) and
``estimate_zero3_model_states_mem_needs`` (4 L + 18 P / n) take that and 16-bit weights under Adam for granted: of LoRA
on frozen weights they count 16 bytes of gradient and state for every element that has none. They leave out the buckets.

What comes on top, of DeepSpeed at commit edaa72212 (2026-08-22) and torch 2.13:

- ``ddp``: buckets of all gradients, a second copy, unless ``gradient_as_bucket_view`` (accelerate's default is false).
- ``zero1``, ``zero2``: a bucket of ``reduce_bucket_size`` elements in the backward pass, however small the model is;
  two with ``overlap_comm`` (``stage_1_and_2.py``, ``setup_buckets``). ``zero3``: one (``stage3.py``). All: a copy of
  what one bucket holds while it is sent (``allreduce_bucket``, ``reduce_scatter_coalesced``).
- ``zero3``, ``fsdp2``: the weights that are gathered at once; see ``rank_bytes``.
- ``fsdp2`` with several micro-batches: all gradients, T g, unless ``sync_each_batch``; see ``Sharding``.
- ZeRO with a master copy: the shard's gradient in its dtype during the optimizer step.

Left out: gradients of a layer on their way to a reduce-scatter, which the simulation of a step sees as gradients, and
what ZeRO keeps on the host between micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

Strategy = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
ZERO: tuple[Strategy, ...] = ("zero1", "zero2", "zero3")
"""Those of DeepSpeed."""
WEIGHTS_SHARDED: tuple[Strategy, ...] = ("zero3", "fsdp2")
"""Those under which a rank holds a part of the weights and gathers the rest."""


@dataclass(frozen=True)
class Sharding:
    """How it is spread.

    Attributes:
        strategy: see ``sharding``; ``none`` is one process.
        offload_optimizer: DeepSpeed's ``offload_optimizer``: optimizer state and the step on the host.
        offload_parameters: DeepSpeed's ``offload_param``, ZeRO-3 alone; FSDP2's ``CPUOffloadPolicy``, which takes
            gradients and optimizer state along.
        to_disk: what is offloaded lies on an NVMe disk (ZeRO-Infinity), and not in the host's memory.
        bucket_elements: DeepSpeed's ``reduce_bucket_size``; transformers puts hidden_size squared for ``auto``.
        overlap_comm: of DeepSpeed; counts a second bucket under ZeRO-1 and 2.
        micro_batches: per optimizer step and rank.
        sync_each_batch: accelerate's. Without it FSDP2 reduces the gradients of the last micro-batch alone, and keeps
            them whole until then (``Accelerator.no_sync``, which transformers' Trainer uses).
        persistent_elements: DeepSpeed's ``stage3_param_persistence_threshold``: ZeRO-3 keeps a weight of no more.
    """

    strategy: Strategy
    ranks: int = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False
    to_disk: bool = False
    gradient_as_bucket_view: bool = False
    bucket_elements: int = 500_000_000
    overlap_comm: bool = False
    micro_batches: int = 1
    sync_each_batch: bool = False
    reuse_elements: int = 1_000_000_000
    prefetch_elements: int = 50_000_000
    persistent_elements: int = 100_000

    @property
    def whole_gradients(self) -> bool:
        """Whether a rank keeps the gradients of all trained weights from one micro-batch to the next."""
        if self.strategy == "fsdp2":
            return self.micro_batches > 1 and not self.sync_each_batch
        return self.strategy not in ("zero2", "zero3")

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"strategy {self.strategy!r}; write one of {', '.join(STRATEGIES)}")
        if self.ranks < 1 or (self.strategy == "none" and self.ranks > 1):
            raise ValueError(f"{self.ranks} ranks with strategy {self.strategy!r}")
        if self.micro_batches < 1:
            raise ValueError(f"{self.micro_batches} micro-batches")
        if self.offload_optimizer and self.strategy not in ZERO:
            raise ValueError(f"offload_optimizer with {self.strategy!r}; it takes {', '.join(ZERO)}")
        if self.offload_parameters and self.strategy not in WEIGHTS_SHARDED:
            raise ValueError(f"offload_parameters with {self.strategy!r}; it takes {' or '.join(WEIGHTS_SHARDED)}")


def shard_elements(strategy: Strategy, shapes: Iterable[tuple[int, ...]], ranks: int) -> int:
    """Elements of these parameters on the rank that holds most, padding included.

    ZeRO-1 and 2 pad all parameters together to a multiple of 2 n elements (DeepSpeed's
    ``nccl_start_alignment_factor``), ZeRO-3 pads each to n (its ``_padding_size``), FSDP2 each parameter's first
    dimension (torch's ``_fsdp_param.py``): with 8 ranks a LoRA factor of 4 x 4096 takes a row of 4096 on each of them,
    twice its even share.

    Hand-worked, shapes (4, 4096) and (7,), 8 ranks, 16,391 elements. ZeRO-2: ceil(16391 / 16) * 2 = 2050.
    ZeRO-3: 2048 + 1. FSDP2: 4096 + 1. DDP: 16,391.
    """
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

    Attributes:
        optimizer_bytes: of optimizer state, 8 for AdamW in fp32.
        master_bytes: of the optimizer's own copy of a trained weight; 0 where it updates the weight itself.
        largest_layer: elements of the largest layer that is gathered at once, frozen ones included.
        staying: elements of the final norm and the head, with the embedding where it shares the head's weight, and of
            what is in no other unit: what FSDP2 keeps gathered from forward to backward.
        layer_uses: times that a micro-batch uses the weights of a layer: forward and backward, 3 where activation
            checkpointing runs the forward again.
        gathered_bytes: of a gathered weight, where it is not gathered as it is stored: FSDP2's ``param_dtype``, 2 where
            mixed precision stores fp32 and gathers bf16. None: as it is stored.
    """

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

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{one.name} of {value}")
        if self.largest_layer + self.staying > self.trained + self.frozen:
            raise ValueError(
                f"largest_layer {self.largest_layer} and staying {self.staying} of"
                f" {self.trained + self.frozen} elements"
            )

    @property
    def weight_bytes(self) -> float:
        """All weights, unsharded."""
        return self.trained * self.trained_bytes + self.frozen * self.frozen_bytes

    @property
    def gathered_weight_bytes(self) -> float:
        """All weights, as they are gathered."""
        return self.weight_bytes if self.gathered_bytes is None else (self.trained + self.frozen) * self.gathered_bytes


@dataclass(frozen=True)
class RankBytes:
    """What one rank holds; the first four from the first step on, on its device.

    Attributes:
        parameter_bytes, gradient_bytes, optimizer_bytes: as in the table; 0 where they are on the host.
        gathered_bytes: weights that are gathered at once, at most, during forward and backward.
        step_bytes: gradients in the master copy's dtype, during the optimizer step.
        host_bytes: what is offloaded, in the host's memory or on its disk.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    bucket_bytes: int
    gathered_bytes: int
    step_bytes: int
    host_bytes: int


def rank_bytes(states: ModelStates, sharding: Sharding) -> RankBytes:
    """What one rank holds, by the formulas of the module, each part rounded up to whole bytes.

    Parameters count as one flat tensor, which is hardly padded; ``shard_elements`` tells the exact number by shape.

    Gathered are under FSDP2 the final norm and the head, which stay from forward to backward (accelerate 1.15,
    ``fsdp2_prepare_model``: ``reshard_after_forward`` is off for them and the root), one layer, and the next, which is
    prefetched; an embedding with a weight of its own is gone by then. ZeRO-3 keeps what is used again within
    ``reuse_elements``, counted in the parameters of every module that runs until then, as often as it runs
    (``partitioned_param_coordinator.py``): the head h twice, a layer u times (``layer_uses``). A layer with d elements
    of layers behind it comes again after u d + 2 h, so that the head stays, the last (``reuse_elements`` - 2 h) / u of
    the layers, and the layer at that border. At least two layers are there at once, and a layer with the head.

    Hand-worked (ZeRO's figure 1): T = 7.5e9, w = g = 2, o = 8, m = 4, n = 64. ZeRO-1: 15 + 15 + 90 / 64 = 31.4 GB.
    ZeRO-2: 15 + 15 / 64 + 90 / 64 = 16.6 GB. ZeRO-3: 120 / 64 = 1.9 GB.
    """
    strategy, ranks, trained = sharding.strategy, sharding.ranks, states.trained
    shard, host = shard_elements(strategy, [(trained,)], ranks), 0.0
    parameters = states.weight_bytes
    if strategy in WEIGHTS_SHARDED:
        parameters = shard * states.trained_bytes + -(-states.frozen // ranks) * states.frozen_bytes
    gradients = (trained if sharding.whole_gradients else shard) * states.gradient_bytes
    optimizer = shard * (states.optimizer_bytes + states.master_bytes)
    step = shard * states.master_bytes if strategy in ZERO else 0.0
    if sharding.offload_optimizer:
        host, optimizer = optimizer + step, 0.0
        if strategy != "zero1":
            # ZeRO-2 holds the shard's gradient once on the host, in the dtype of the master copy where there is one.
            host, gradients = host + (gradients if strategy == "zero3" or not step else 0.0), 0.0
        step = 0.0
    if sharding.offload_parameters:
        host, parameters = host + parameters, 0.0
        if strategy == "fsdp2":
            # Whole gradients wait for the last micro-batch on the device; what it leaves of them goes to the host.
            host, optimizer = host + shard * states.gradient_bytes + optimizer, 0.0
            gradients = gradients if sharding.whole_gradients else 0.0
    parts = (parameters, gradients, optimizer, _buckets(states, sharding), _gathered(states, sharding), step, host)
    return RankBytes(*(math.ceil(part) for part in parts))


def _buckets(states: ModelStates, sharding: Sharding) -> float:
    if sharding.strategy == "ddp":
        return 0.0 if sharding.gradient_as_bucket_view else states.trained * states.gradient_bytes
    if sharding.strategy not in ZERO:
        return 0.0
    double = sharding.overlap_comm and sharding.strategy != "zero3"
    copied = min(sharding.bucket_elements, states.trained)
    return (sharding.bucket_elements * (2 if double else 1) + copied) * states.gradient_bytes


def kept_elements(states: ModelStates, sharding: Sharding) -> int:
    """Elements of gathered weights that stay from the forward to the backward pass; see ``rank_bytes``."""
    if sharding.strategy == "fsdp2":
        return states.staying
    beyond = sharding.reuse_elements - 2 * states.staying
    layers = states.largest_layer + beyond // states.layer_uses if beyond > 0 else 0
    head = states.staying if sharding.reuse_elements else 0
    return min(head + layers, states.trained + states.frozen)


def _gathered(states: ModelStates, sharding: Sharding) -> float:
    if sharding.strategy not in WEIGHTS_SHARDED:
        return 0.0
    elements, kept = states.trained + states.frozen, kept_elements(states, sharding)
    layer = states.largest_layer
    at_once = kept + 2 * layer if sharding.strategy == "fsdp2" else max(2 * layer, layer + states.staying, kept)
    return min(elements, at_once) / elements * states.gathered_weight_bytes if elements else 0.0
