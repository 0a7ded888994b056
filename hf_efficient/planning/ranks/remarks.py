"""What a plan for several ranks takes for granted."""

from __future__ import annotations

from collections.abc import Iterator

from hf_efficient.estimate.parallelism import WEIGHTS_SHARDED
from hf_efficient.planning.optimizers import is_bitsandbytes
from hf_efficient.planning.rehearsed import Rank, Rehearsal
from hf_efficient.recipe.schema import Recipe
from hf_efficient.text import size

_MOST_IN_ONE_MACHINE = 8


def rank_remarks(recipe: Recipe, rehearsal: Rehearsal) -> list[str]:
    """One line each; for a process that trains alone, only what ``auto`` counts for."""
    if rehearsal.rank is not None:
        several = recipe.distributed.nodes > 1
        return [*_remarks(rehearsal, rehearsal.rank, several), *_optimizer_remarks(recipe, rehearsal.rank)]
    if recipe.distributed.processes == "auto":
        return ["distributed.processes: auto is planned as one process; --num-gpus N plans N"]
    return []


def _optimizer_remarks(recipe: Recipe, rank: Rank) -> Iterator[str]:
    if recipe.method == "dpo" and recipe.adapter.method == "full" and rank.sharding.strategy in WEIGHTS_SHARDED:
        yield "the reference model is planned whole on each rank: an upper bound"
    name = str(recipe.train.get("optim", ""))
    if is_bitsandbytes(name) and rank.sharding.strategy == "fsdp2":
        yield f"train.optim={name} crashes under FSDP2 (bitsandbytes issue 1633, open when read): adamw_torch runs"


def _remarks(rehearsal: Rehearsal, rank: Rank, several_machines: bool) -> Iterator[str]:
    sharding = rank.sharding
    yield _MODELS[sharding.strategy]
    if sharding.ranks > 1:
        yield "communication is hidden behind computation as far as its order allows: what is left of it is the least"
    weights = [weight for unit in rehearsal.units for weight in unit.weights]
    if any(weight.packed for weight in weights) and sharding.strategy == "fsdp2":
        yield (
            "4-bit weights are sharded as bytes, their constants are whole on each rank: that takes "
            "bnb_4bit_quant_storage in 16 bits; stored as uint8 accelerate leaves them whole as well"
        )
        whole = sum(weight.elements * weight.loaded_itemsize for weight in weights if not weight.trained)
        yield (
            f"loading: each process reads and quantizes the whole model in the host's memory, {size(whole)} for each "
            f"of {sharding.ranks} processes; a GPU then gets its share layer by layer"
        )
    if any(weight.quantized for weight in weights) and sharding.strategy == "zero3":
        yield "quantized weights are whole on each rank: DeepSpeed does not shard them (PEFT issue 2016)"
    if any(weight.quantized and not weight.packed for weight in weights) and sharding.strategy == "fsdp2":
        yield "8-bit weights are whole on each rank: fully_shard does not shard integers"
    few = sum(1 for weight in weights if weight.shape and weight.shape[0] < sharding.ranks)
    if few and sharding.strategy == "fsdp2":
        yield f"{few:,} parameters have fewer rows than there are ranks: some ranks hold none of them"
    if sharding.to_disk:
        yield "DeepSpeed's pinned buffers for what goes to the NVMe disk lie in the host's memory, and are not planned"
    elif sharding.offload_optimizer or sharding.offload_parameters:
        yield "transfers to the host wait for PCIe in full; the optimizer's step on the host is not in the time"
        yield "the host's memory holds what is offloaded; the processes themselves and the loading come on top"
    if several_machines or sharding.ranks > _MOST_IN_ONE_MACHINE:
        yield f"{sharding.ranks} GPUs exchange data as if all were in one machine: no network between machines"


_DDP = "DDP: each rank holds the whole model and a second copy of the gradients, in buckets"
_ZERO = "buckets of hidden_size^2 elements, as the launch sets them"
_MODELS = {
    "none": "one rank",
    "ddp": _DDP,
    "zero1": f"{_ZERO}; the model is cast to 16 bits, and each rank steps on its share in float32",
    "zero2": f"{_ZERO}; the model is cast to 16 bits, and each rank steps on its share in float32",
    "zero3": f"{_ZERO}, weights gathered layer by layer and kept where they come again within 1,000 million elements",
    "fsdp2": "FSDP2 as accelerate sets it up: trained weights in float32 under mixed precision, gathered layer by "
    "layer in 16 bits; its buffers lie in the pools of other streams, whose own cache is not in the reserved memory",
}
