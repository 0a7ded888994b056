"""What a rank holds all the time: weights and optimizer state cut to its share, or moved to the host."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hf_efficient.estimate.parallelism import ZERO
from hf_efficient.planning.ranks.score import Score
from hf_efficient.planning.ranks.sizes import Sizes
from hf_efficient.planning.ranks.units import HeldWeight
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.simulate.storage_life import StorageLife

_SCALAR = 8
"""Bytes of a count of steps, at most."""


def held_weights(rehearsal: Rehearsal) -> dict[str, HeldWeight]:
    """All parameters by name."""
    return {weight.name: weight for unit in rehearsal.units for weight in unit.weights}


def gradient_indices(rehearsal: Rehearsal) -> dict[str, list[int]]:
    """Places in the log of each trained parameter's gradients, one per optimizer step."""
    found: dict[str, list[int]] = {}
    for index, life in enumerate(rehearsal.log.lives):
        if life.category == "gradients":
            found.setdefault(life.module, []).append(index)
    return found


def shrink_held(rehearsal: Rehearsal, score: Score, sizes: Sizes) -> None:
    """Resize weights, optimizer state, and what the optimizer allocates to step, to the rank's share on its device.

    Args:
        rehearsal: of the whole model.
        score: takes the changes.
        sizes: of the sharding.
    """
    weights, seen = held_weights(rehearsal), set[str]()
    whole = {weight.shape for weight in weights.values() if weight.trained}
    counts = _flat_counts(rehearsal, weights) if sizes.strategy in ZERO else {}
    for index, life in enumerate(rehearsal.log.lives):
        weight = weights.get(life.module)
        if life.category in ("weights", "adapter") and weight is not None and life.operator == life.module:
            if life.module in seen:  # a reference model's, which each rank holds whole
                continue
            seen.add(life.module)
            moved = sizes.sharding.offload_parameters and sizes.is_sharded(weight)
            score.resize(index, 0 if moved else sizes.weight(weight))
        elif life.category == "optimizer_state" and weight is not None and sizes.shards_optimizer:
            score.resize(index, 0 if _on_host(sizes) else counts.get(index, _share(life, weight, sizes)))
        elif life.phase == "optimizer" and life.shape in whole and not life.category and sizes.shards_optimizer:
            score.resize(index, 0 if _on_host(sizes) else _state(life, life.shape, sizes))
    for unit in rehearsal.units:
        if not _on_host(sizes):
            master = sum(sizes.master(weight) for weight in unit.weights)
            score.add(rehearsal.first_step, master, "optimizer_state", f"{unit.name} (master copy)", "setup", 4)


def _flat_counts(rehearsal: Rehearsal, weights: Mapping[str, HeldWeight]) -> dict[int, int]:
    """Bytes of the optimizer's scalars, by their place in the log: DeepSpeed steps on one flat tensor for what decays
    (matrices, by transformers' rule) and one for what does not, so that all but the first of each are not there.
    """
    counts, seen = {}, set[bool]()
    for index, life in enumerate(rehearsal.log.lives):
        weight = weights.get(life.module)
        if life.category != "optimizer_state" or weight is None or life.bytes > _SCALAR:
            continue
        decays = len(weight.shape) > 1
        counts[index] = 0 if decays in seen else life.bytes
        seen.add(decays)
    return counts


def _on_host(sizes: Sizes) -> bool:
    sharding = sizes.sharding
    return sharding.offload_optimizer or (sharding.strategy == "fsdp2" and sharding.offload_parameters)


def _share(life: StorageLife, weight: HeldWeight, sizes: Sizes) -> int:
    """Of a tensor of the state: an element per value, several, or a constant for a block of them; a scalar is whole."""
    if life.shape[-len(weight.shape) :] == weight.shape and weight.shape:
        return _state(life, weight.shape, sizes)
    elements = weight.elements
    return life.bytes if life.bytes <= _SCALAR else -(-life.bytes * sizes.shard(weight.shape) // elements)


def _state(life: StorageLife, shape: tuple[int, ...], sizes: Sizes) -> int:
    itemsize, elements = life.dtype.itemsize, math.prod(shape)
    tensors = life.bytes // max(1, elements * itemsize)
    return tensors * sizes.shard(shape) * sizes.state_itemsize(itemsize, life.dtype.is_floating_point)
