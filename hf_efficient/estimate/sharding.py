"""How training is spread over ranks: strategy and settings, what there is to spread, and a rank's share of it.

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
    """How it is spread; ``none`` is one process.

    Attributes:
        offload_optimizer: DeepSpeed's ``offload_optimizer``: optimizer state and the step on the host.
        offload_parameters: DeepSpeed's ``offload_param``, ZeRO-3 alone; FSDP2's ``CPUOffloadPolicy``, with gradients
            and state.
        bucket_elements: DeepSpeed's ``reduce_bucket_size``; transformers puts hidden_size squared for ``auto``.
        overlap_comm: of DeepSpeed; takes a second bucket under ZeRO-1 and 2.
        reuse_elements, prefetch_elements: DeepSpeed's ``stage3_max_reuse_distance``, ``stage3_prefetch_bucket_size``.
        persistent_elements: its ``stage3_param_persistence_threshold``: ZeRO-3 keeps weights up to it.
    """

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
        if self.strategy == "fsdp2":
            return self.micro_batches > 1
        return self.strategy not in ("zero2", "zero3")


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

    Attributes:
        optimizer_bytes: of optimizer state, 8 for AdamW in fp32.
        master_bytes: of the optimizer's own copy of a trained weight, or 0.
        largest_layer: elements of the largest layer gathered at once, frozen ones included.
        staying: elements that FSDP2 keeps gathered from forward to backward: final norm, head, shared embedding, rest.
        layer_uses: of a layer's weights in a micro-batch: 2, or 3 under activation checkpointing.
        gathered_bytes: of a gathered weight: FSDP2's ``param_dtype``, 2 where mixed precision stores fp32; None: as is.
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

    @property
    def weight_bytes(self) -> float:
        return self.trained * self.trained_bytes + self.frozen * self.frozen_bytes

    @property
    def gathered_weight_bytes(self) -> float:
        return self.weight_bytes if self.gathered_bytes is None else (self.trained + self.frozen) * self.gathered_bytes


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
