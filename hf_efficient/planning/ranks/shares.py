"""A rank's share of weights, gradients and optimizer state, by the recipe's strategy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.estimate.sharding import WEIGHTS_SHARDED, ZERO, ModelStates, Sharding, Strategy, shard_elements
from hf_efficient.planning.ranks.log import Score
from hf_efficient.planning.simulation import HeldWeight, Simulation, Unit
from hf_efficient.recipe.rules.distributed import planned_processes
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate.tensor_log import StorageLife

_FLOAT32 = 4
_SCALAR = 8
"""Bytes of a count of steps, at most."""


def model_width(config: Any) -> int | None:
    """The width by which transformers (5.23, ``trainer_config_finalize``) sets DeepSpeed's ``auto``; None: refused."""
    held = config if hasattr(config, "hidden_size") else getattr(config, "text_config", None)
    return getattr(held, "hidden_size", None)


def sharding_of(recipe: Recipe, processes: int | None = None, width: int | None = None) -> Sharding:
    """How the recipe's run is spread; ``processes: auto`` counts for one on each machine. ``width``, of the model, sets
    DeepSpeed's buckets; default: its own sizes."""
    distributed = recipe.distributed
    ranks = processes or planned_processes(recipe)
    strategy: Strategy = "none" if ranks == 1 else "ddp"
    if distributed.strategy not in ("auto", "ddp"):
        strategy = distributed.strategy  # type: ignore[assignment]
    # As the launch writes DeepSpeed's configuration, its ``auto`` filled in; a test holds them together.
    settings: dict[str, Any] = {"overlap_comm": strategy in ZERO}
    if width is not None and strategy in ZERO:
        settings["bucket_elements"] = width * width
    if width is not None and strategy == "zero3":
        settings |= {"prefetch_elements": int(0.9 * width * width), "persistent_elements": 10 * width}
    return Sharding(
        strategy,
        ranks,
        offload_optimizer=distributed.offload.optimizer,
        offload_parameters=distributed.offload.parameters,
        to_disk=distributed.offload.nvme_path is not None,
        micro_batches=int(recipe.train.get("gradient_accumulation_steps", 1)),
        **settings,
    )


@dataclass(frozen=True)
class Sizes:
    """Bytes on one rank, by parameter or unit. accelerate (1.15, ``fsdp2_prepare_model``) stores trained weights in
    float32 under mixed precision, and gathers all in 16 bits; a model with 4-bit weights (``packed``) stays as loaded.
    DeepSpeed casts the model to 16 bits and steps on a float32 copy; without mixed precision ZeRO-1 and 2 copy as well
    (``stage_1_and_2.py``), ZeRO-3 does not."""

    sharding: Sharding
    mixed: bool
    packed: bool

    @property
    def strategy(self) -> str:
        return self.sharding.strategy

    @property
    def shards_optimizer(self) -> bool:
        return self.strategy in ZERO or self.strategy == "fsdp2"

    def is_sharded(self, weight: HeldWeight) -> bool:
        """Whether a rank holds only a share of a weight. DeepSpeed leaves quantized ones whole (PEFT issue 2016). FSDP2
        shards 4-bit ones stored as 16-bit elements (``bnb_4bit_quant_storage``), and no 8-bit ones."""
        if weight.quantized and not (weight.packed and self.strategy == "fsdp2"):
            return False
        return self.strategy in WEIGHTS_SHARDED

    def shard(self, shape: tuple[int, ...]) -> int:
        """Elements of a tensor of a parameter's shape on the rank that holds most."""
        return shard_elements("fsdp2" if self.strategy == "fsdp2" else "zero3", [shape], self.sharding.ranks)

    def stored_itemsize(self, weight: HeldWeight) -> int:
        """Bytes of an element at rest."""
        if self.strategy == "fsdp2" and self.mixed and weight.trained and not self.packed:
            return _FLOAT32
        return weight.itemsize if self.strategy in ZERO else weight.loaded_itemsize

    def weight(self, weight: HeldWeight) -> int:
        elements = self.shard(weight.shape) if self.is_sharded(weight) else weight.elements
        return elements * self.stored_itemsize(weight)

    def gathered(self, weight: HeldWeight) -> int:
        """Of a weight that is gathered, its padding included; 0 of one that is never sharded."""
        return self.whole_gradient(weight) if self.is_sharded(weight) else 0

    def gradient_shard(self, weight: HeldWeight) -> int:
        itemsize = self.stored_itemsize(weight) if self.strategy == "fsdp2" else weight.itemsize
        return self.shard(weight.shape) * itemsize

    def whole_gradient(self, weight: HeldWeight) -> int:
        return self.shard(weight.shape) * self.sharding.ranks * weight.itemsize

    def master(self, weight: HeldWeight) -> int:
        copies = self.strategy in ZERO and (self.mixed or self.strategy != "zero3")
        return self.shard(weight.shape) * _FLOAT32 if copies and weight.trained else 0

    def state_itemsize(self, life: StorageLife) -> int:
        """Bytes of an element of what the optimizer computes with."""
        itemsize = life.dtype.itemsize
        in_float32 = self.mixed and (self.strategy in ZERO or (self.strategy == "fsdp2" and not self.packed))
        return _FLOAT32 if life.dtype.is_floating_point and in_float32 and itemsize > 1 else itemsize

    def unit_gathered(self, unit: Unit) -> int:
        return sum(self.gathered(weight) for weight in unit.weights)


def layer_uses(simulation: Simulation) -> int:
    """Times that a micro-batch uses the weights of a layer; see ``ModelStates``."""
    return 3 if any(life.phase == "recompute" for life in simulation.log.lives) else 2


def states_of(simulation: Simulation, sizes: Sizes) -> ModelStates:
    """A simulated model in the terms of the arithmetic; weights that the strategy leaves whole are none of it."""
    shared = {
        weight.name: weight
        for weight in simulation.weights.values()
        if not weight.quantized or sizes.is_sharded(weight) or sizes.strategy not in WEIGHTS_SHARDED
    }
    trained = [weight for weight in shared.values() if weight.trained]
    frozen = [weight for weight in shared.values() if not weight.trained]
    held = [(unit, sum(one.values for one in unit.weights if one.name in shared)) for unit in simulation.units]
    elements = sum(one.values for one in shared.values())
    gathered = sum(one.elements * one.itemsize for one in shared.values())
    state = sum(
        life.bytes // life.dtype.itemsize * sizes.state_itemsize(life)
        for life in simulation.log.lives
        if life.category == "optimizer_state"
    )
    return ModelStates(
        trained=sum(one.values for one in trained),
        frozen=sum(one.values for one in frozen),
        trained_bytes=_mean(trained, sizes),
        frozen_bytes=_mean(frozen, sizes),
        gradient_bytes=max((one.itemsize for one in trained), default=0),
        optimizer_bytes=state / max(1, sum(one.values for one in trained)),
        master_bytes=4.0 if any(sizes.master(one) for one in trained) else 0.0,
        largest_layer=max((values for unit, values in held if unit.is_layer), default=0),
        staying=sum(values for unit, values in held if unit.stays),
        gathered_bytes=gathered / elements if elements else None,
        layer_uses=layer_uses(simulation),
    )


def _mean(weights: list[HeldWeight], sizes: Sizes) -> float:
    values = sum(one.values for one in weights)
    return sum(one.elements * sizes.stored_itemsize(one) for one in weights) / values if values else 0.0


def gradient_indices(simulation: Simulation) -> dict[str, list[int]]:
    """Places in the log of each trained parameter's gradients, one per optimizer step."""
    found: dict[str, list[int]] = {}
    for index, life in enumerate(simulation.log.lives):
        if life.category == "gradients":
            found.setdefault(life.module, []).append(index)
    return found


def shrink_held(simulation: Simulation, score: Score, sizes: Sizes) -> None:
    """Resize weights, optimizer state, and what the optimizer allocates to step, to the rank's share on its device."""
    weights, seen = simulation.weights, set[str]()
    whole = {weight.shape for weight in weights.values() if weight.trained}
    counts = _flat_counts(simulation, weights) if sizes.strategy in ZERO else {}
    on_host = sizes.sharding.steps_on_host
    for index, life in enumerate(simulation.log.lives):
        weight = weights.get(life.module)
        if life.category in ("weights", "adapter") and weight is not None and life.operator == life.module:
            if life.module in seen:  # a reference model's, which each rank holds whole
                continue
            seen.add(life.module)
            moved = sizes.sharding.offload_parameters and sizes.is_sharded(weight)
            score.resize(index, 0 if moved else sizes.weight(weight), sizes.stored_itemsize(weight))
        elif life.category == "optimizer_state" and weight is not None and sizes.shards_optimizer:
            held = counts.get(index, _share(life, weight, sizes))
            score.resize(index, 0 if on_host else held, sizes.state_itemsize(life) if held > _SCALAR else None)
        elif life.phase == "optimizer" and life.shape in whole and not life.category and sizes.shards_optimizer:
            score.resize(index, 0 if on_host else _state(life, life.shape, sizes), sizes.state_itemsize(life))
    if not on_host:
        for unit in simulation.units:
            master = sum(sizes.master(weight) for weight in unit.weights)
            score.add(simulation.first_step, master, "optimizer_state", f"{unit.name} (master copy)", "setup", 4)


def _flat_counts(simulation: Simulation, weights: Mapping[str, HeldWeight]) -> dict[int, int]:
    """Bytes of the optimizer's scalars, by their place in the log: DeepSpeed steps on two flat tensors, of what decays
    (matrices, by transformers' rule) and what does not."""
    counts, seen = {}, set[bool]()
    for index, life in enumerate(simulation.log.lives):
        weight = weights.get(life.module)
        if life.category != "optimizer_state" or weight is None or life.bytes > _SCALAR:
            continue
        decays = len(weight.shape) > 1
        counts[index] = 0 if decays in seen else life.bytes
        seen.add(decays)
    return counts


def _share(life: StorageLife, weight: HeldWeight, sizes: Sizes) -> int:
    """Of a tensor of the state: an element per value, several, or a constant for a block of them; a scalar is whole."""
    if life.shape[-len(weight.shape) :] == weight.shape and weight.shape:
        return _state(life, weight.shape, sizes)
    return life.bytes if life.bytes <= _SCALAR else -(-life.bytes * sizes.shard(weight.shape) // weight.elements)


def _state(life: StorageLife, shape: tuple[int, ...], sizes: Sizes) -> int:
    tensors = life.bytes // max(1, math.prod(shape) * life.dtype.itemsize)
    return tensors * sizes.shard(shape) * sizes.state_itemsize(life)
