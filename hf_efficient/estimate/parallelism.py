"""How training is spread over ranks: the strategy and its settings, and the share of parameters that a rank holds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
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
        ranks: processes, one per device.
        offload_optimizer: DeepSpeed's ``offload_optimizer``: optimizer state and the step on the host.
        offload_parameters: DeepSpeed's ``offload_param``, ZeRO-3 alone; FSDP2's ``CPUOffloadPolicy``, which takes
            gradients and optimizer state along.
        to_disk: what is offloaded lies on an NVMe disk (ZeRO-Infinity), and not in the host's memory.
        gradient_as_bucket_view: of DDP.
        bucket_elements: DeepSpeed's ``reduce_bucket_size``; transformers puts hidden_size squared for ``auto``.
        overlap_comm: of DeepSpeed; counts a second bucket under ZeRO-1 and 2.
        micro_batches: per optimizer step and rank.
        sync_each_batch: accelerate's. Without it FSDP2 reduces the gradients of the last micro-batch alone, and keeps
            them whole until then (``Accelerator.no_sync``, which transformers' Trainer uses).
        reuse_elements: DeepSpeed's ``stage3_max_reuse_distance``.
        prefetch_elements: DeepSpeed's ``stage3_prefetch_bucket_size``.
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
        """Check.

        Raises:
            ValueError: the strategy is unknown, cannot have this many ranks, or cannot offload this; or there is no
                micro-batch.
        """
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
