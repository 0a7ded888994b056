"""A rehearsed model in the terms of the arithmetic of sharding."""

from __future__ import annotations

from hf_efficient.estimate.parallelism import WEIGHTS_SHARDED
from hf_efficient.estimate.sharding import ModelStates
from hf_efficient.planning.ranks.sizes import Sizes
from hf_efficient.planning.ranks.units import HeldWeight
from hf_efficient.planning.rehearsed import Rehearsal


def layer_uses(rehearsal: Rehearsal) -> int:
    """Times that a micro-batch uses the weights of a layer; see ``ModelStates``."""
    return 3 if any(life.phase == "recompute" for life in rehearsal.log.lives) else 2


def states_of(rehearsal: Rehearsal, sizes: Sizes) -> ModelStates:
    """Elements and bytes; weights that the strategy leaves whole are none of it.

    Args:
        rehearsal: of the whole model.
        sizes: of the sharding.
    """
    shared = [
        weight
        for unit in rehearsal.units
        for weight in unit.weights
        if not weight.quantized or sizes.is_sharded(weight) or sizes.strategy not in WEIGHTS_SHARDED
    ]
    trained = [weight for weight in shared if weight.trained]
    frozen = [weight for weight in shared if not weight.trained]
    layers = [sum(one.values for one in unit.weights if one in shared) for unit in rehearsal.units if unit.is_layer]
    staying = sum(one.values for unit in rehearsal.units if unit.stays for one in unit.weights if one in shared)
    elements = sum(one.values for one in shared)
    gathered = sum(one.elements * one.itemsize for one in shared)
    return ModelStates(
        trained=sum(one.values for one in trained),
        frozen=sum(one.values for one in frozen),
        trained_bytes=_mean(trained, sizes),
        frozen_bytes=_mean(frozen, sizes),
        gradient_bytes=max((one.itemsize for one in trained), default=0),
        optimizer_bytes=_optimizer_bytes(rehearsal, sizes, trained),
        master_bytes=4.0 if any(sizes.master(one) for one in trained) else 0.0,
        largest_layer=max(layers, default=0),
        staying=staying,
        gathered_bytes=gathered / elements if elements else None,
        layer_uses=layer_uses(rehearsal),
    )


def _mean(weights: list[HeldWeight], sizes: Sizes) -> float:
    """Bytes of a value at rest."""
    values = sum(one.values for one in weights)
    return sum(one.elements * sizes.stored_itemsize(one) for one in weights) / values if values else 0.0


def _optimizer_bytes(rehearsal: Rehearsal, sizes: Sizes, trained: list[HeldWeight]) -> float:
    values = sum(one.values for one in trained)
    held = sum(
        life.bytes // life.dtype.itemsize * sizes.state_itemsize(life.dtype.itemsize, life.dtype.is_floating_point)
        for life in rehearsal.log.lives
        if life.category == "optimizer_state"
    )
    return held / values if values else 0.0
