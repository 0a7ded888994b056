"""Bytes of a parameter's weight, gradient and optimizer state on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_efficient.estimate.parallelism import WEIGHTS_SHARDED, ZERO, Sharding, shard_elements
from hf_efficient.planning.ranks.units import HeldWeight, Unit

_FLOAT32 = 4


@dataclass(frozen=True)
class Sizes:
    """By parameter or unit.

    accelerate (1.15, ``fsdp2_prepare_model``) stores trained weights in float32 under mixed precision, and gathers all
    in 16 bits; it leaves a model with 4-bit weights as it is loaded. DeepSpeed casts the model to 16 bits and steps on
    a float32 copy; without mixed precision ZeRO-1 and 2 copy as well (``stage_1_and_2.py``), ZeRO-3 does not.

    Attributes:
        sharding: of the run.
        mixed: whether it trains in mixed precision.
        packed: whether there are 4-bit weights.
    """

    sharding: Sharding
    mixed: bool
    packed: bool

    @property
    def strategy(self) -> str:
        """Of the sharding."""
        return self.sharding.strategy

    @property
    def shards_optimizer(self) -> bool:
        """Whether a rank steps on a share of the weights."""
        return self.strategy in ZERO or self.strategy == "fsdp2"

    def is_sharded(self, weight: HeldWeight) -> bool:
        """Whether a rank holds a share of a weight alone; DeepSpeed leaves quantized ones whole (PEFT issue 2016).

        FSDP2 shards 4-bit ones that are stored as 16-bit elements (``bnb_4bit_quant_storage``), and no 8-bit ones.
        """
        if weight.quantized and not (weight.packed and self.strategy == "fsdp2"):
            return False
        return self.strategy in WEIGHTS_SHARDED

    def shard(self, shape: tuple[int, ...]) -> int:
        """Elements of a tensor of a parameter's shape on the rank that holds most."""
        kind: Literal["fsdp2", "zero3"] = "fsdp2" if self.strategy == "fsdp2" else "zero3"
        return shard_elements(kind, [shape], self.sharding.ranks)

    def stored_itemsize(self, weight: HeldWeight) -> int:
        """Bytes of an element at rest."""
        if self.strategy == "fsdp2" and self.mixed and weight.trained and not self.packed:
            return _FLOAT32
        return weight.itemsize if self.strategy in ZERO else weight.loaded_itemsize

    def weight(self, weight: HeldWeight) -> int:
        """Of a weight at rest."""
        elements = self.shard(weight.shape) if self.is_sharded(weight) else weight.elements
        return elements * self.stored_itemsize(weight)

    def gathered(self, weight: HeldWeight) -> int:
        """Of a weight that is gathered, its padding included; 0 of one that is never sharded."""
        if not self.is_sharded(weight):
            return 0
        return self.shard(weight.shape) * self.sharding.ranks * weight.itemsize

    def gradient_shard(self, weight: HeldWeight) -> int:
        """Of a rank's share of a gradient."""
        if self.strategy == "fsdp2":
            return self.shard(weight.shape) * self.stored_itemsize(weight)
        return self.shard(weight.shape) * weight.itemsize

    def whole_gradient(self, weight: HeldWeight) -> int:
        """Of a gradient on its way to be reduced, its padding included."""
        return self.shard(weight.shape) * self.sharding.ranks * weight.itemsize

    def master(self, weight: HeldWeight) -> int:
        """Of DeepSpeed's own copy of a trained weight, on one rank."""
        copies = self.strategy in ZERO and (self.mixed or self.strategy != "zero3")
        return self.shard(weight.shape) * _FLOAT32 if copies and weight.trained else 0

    def state_itemsize(self, itemsize: int, floating: bool) -> int:
        """Bytes of an element of what the optimizer computes with, in the place of so many."""
        in_float32 = self.mixed and (self.strategy in ZERO or (self.strategy == "fsdp2" and not self.packed))
        return _FLOAT32 if floating and in_float32 and itemsize > 1 else itemsize

    def unit_gathered(self, unit: Unit) -> int:
        """Of all weights of a unit, gathered."""
        return sum(self.gathered(weight) for weight in unit.weights)
