"""The rehearsal of one rank of several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hf_efficient.estimate.parallelism import ZERO, Sharding
from hf_efficient.planning.ranks.ddp import add_buckets
from hf_efficient.planning.ranks.fsdp2 import FullyShardWalk
from hf_efficient.planning.ranks.held import shrink_held
from hf_efficient.planning.ranks.score import Score
from hf_efficient.planning.ranks.sharding import model_width, sharding_of
from hf_efficient.planning.ranks.sizes import Sizes
from hf_efficient.planning.ranks.states import states_of
from hf_efficient.planning.ranks.zero import ZeroWalk
from hf_efficient.planning.ranks.zero_gradients import spread_gradients
from hf_efficient.planning.rehearsal import rehearse
from hf_efficient.planning.rehearsed import Rank, Rehearsal
from hf_efficient.recipe.schema import Recipe, mixed_precision

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def rehearse_rank(
    recipe: Recipe,
    config: PretrainedConfig,
    length: int | None = None,
    *,
    padded: bool = False,
    evaluation_length: int | None = None,
    on_gpu: bool = True,
    processes: int | None = None,
) -> Rehearsal:
    """Rehearse the recipe on one rank of those that its ``distributed`` section starts.

    Args:
        recipe: the recipe.
        config: of its model.
        length: tokens of every row; default: the most that the recipe allows.
        padded: whether a row of each micro-batch is shorter, so that the attention needs a mask.
        evaluation_length: tokens of every row that is evaluated on; default: ``length``.
        on_gpu: whether the run is on a GPU.
        processes: that train; default: the recipe's.

    Raises:
        HfEfficientError: what the recipe's own run would refuse.
    """
    sharding, mixed = sharding_of(recipe, processes, model_width(config)), mixed_precision(recipe) != "no"
    if not on_gpu:  # what is offloaded goes where all the rest is
        sharding = replace(sharding, offload_optimizer=False, offload_parameters=False)
    # DeepSpeed casts the model, FSDP2 gathers it in 16 bits: the step computes with such weights.
    computes_in = torch.bfloat16 if mixed and sharding.strategy in (*ZERO, "fsdp2") else None
    rehearsal = rehearse(
        recipe,
        config,
        length,
        padded=padded,
        evaluation_length=evaluation_length,
        on_gpu=on_gpu,
        computes_in=computes_in,
    )
    return spread(rehearsal, sharding, mixed=mixed)


def spread(rehearsal: Rehearsal, sharding: Sharding, *, mixed: bool) -> Rehearsal:
    """A rehearsal of the whole model as that of the rank that holds most.

    Args:
        rehearsal: of the whole model; in 16 bits where the strategy computes so.
        sharding: how it is spread.
        mixed: whether the run trains in mixed precision.
    """
    if sharding.strategy == "none":
        return rehearsal
    packed = any(weight.packed for unit in rehearsal.units for weight in unit.weights)
    sizes, score = Sizes(sharding, mixed, packed), Score(rehearsal)
    if sharding.strategy == "ddp":
        add_buckets(rehearsal, score)
    else:
        shrink_held(rehearsal, score, sizes)
    if sharding.strategy == "fsdp2":
        FullyShardWalk(rehearsal, score, sizes).go()
    elif sharding.strategy in ZERO:
        spread_gradients(rehearsal, score, sizes)
        ZeroWalk(rehearsal, score, sizes).go()
    layers = sum(1 for unit in rehearsal.units if unit.is_layer)
    shares = sharding.ranks if sizes.shards_optimizer else 1
    return replace(
        score.written(),
        rank=Rank(sharding, states_of(rehearsal, sizes), layers),
        paged_bytes=-(-rehearsal.paged_bytes // shares),
    )
