"""One rank of several: its simulation, what its step exchanges with others, and what a plan takes for granted."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PretrainedConfig

from hf_efficient.estimate import sharding as estimate
from hf_efficient.estimate.sharding import WEIGHTS_SHARDED, ZERO, ModelStates, Sharding
from hf_efficient.facts.tables import collective_bandwidth, host_bandwidth, key_table, overhead_seconds
from hf_efficient.planning.arguments import is_bitsandbytes
from hf_efficient.planning.batches import RunShapes
from hf_efficient.planning.ranks.log import Score
from hf_efficient.planning.ranks.shares import Sizes, model_width, sharding_of, shrink_held, states_of
from hf_efficient.planning.ranks.walks import FullyShardWalk, ZeroWalk, spread_gradients
from hf_efficient.planning.simulation import Rank, Simulation, simulate
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe, mixed_precision
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedRanks
from hf_efficient.text import size as size_text

_FIRST_BUCKET = 1 << 20
"""DDP's ``kDefaultFirstBucketBytes`` (torch 2.13, ``reducer.cpp``)."""
_MOST_IN_ONE_MACHINE = 8


def simulate_rank(
    recipe: Recipe,
    config: PretrainedConfig,
    rows: RunShapes | int | None = None,
    *,
    on_gpu: bool = True,
    processes: int | None = None,
) -> Simulation:
    """``simulate`` on one rank of those that the ``distributed`` section starts; raises what the recipe's run would.
    ``rows``: those of the run's data, or tokens of every row; None: the most that the recipe allows."""
    sharding, mixed = sharding_of(recipe, processes, model_width(config)), mixed_precision(recipe) != "no"
    if not on_gpu:  # what is offloaded goes where all the rest is
        sharding = replace(sharding, offload_optimizer=False, offload_parameters=False)
    # DeepSpeed casts the model, FSDP2 gathers it in 16 bits: the step computes with such weights.
    computes_in = torch.bfloat16 if mixed and sharding.strategy in (*ZERO, "fsdp2") else None
    if not isinstance(rows, RunShapes):
        return spread(simulate(recipe, config, rows, on_gpu=on_gpu, computes_in=computes_in), sharding, mixed=mixed)
    simulation = simulate(
        _no_more_rows_than_there_are(recipe, rows),
        config,
        rows.train.row_tokens,
        padded=rows.train.padded,
        evaluation_length=None if rows.evaluation is None else rows.evaluation.row_tokens,
        on_gpu=on_gpu,
        computes_in=computes_in,
    )
    return spread(simulation, sharding, mixed=mixed)


def _no_more_rows_than_there_are(recipe: Recipe, shapes: RunShapes) -> Recipe:
    train = dict(recipe.train)
    for phase, rows in (("train", shapes.rows), ("eval", shapes.evaluation_rows)):
        name = f"per_device_{phase}_batch_size"
        wanted = int(train.get(name, 8))  # transformers' own, where a recipe is silent
        if 0 < rows < wanted:
            train[name] = rows
    return recipe.model_copy(update={"train": train})


def spread(simulation: Simulation, sharding: Sharding, *, mixed: bool) -> Simulation:
    """A simulation of the whole model, in 16 bits where the strategy computes so, as that of the fullest rank."""
    if sharding.strategy == "none":
        return simulation
    packed = any(weight.packed for weight in simulation.weights.values())
    sizes, score = Sizes(sharding, mixed, packed), Score(simulation)
    if sharding.strategy == "ddp":
        # A second copy of all gradients, from the first step on; accelerate leaves ``gradient_as_bucket_view`` off.
        trained = [weight for unit in simulation.units for weight in unit.weights if weight.trained]
        for held in bucket_bytes(weight.elements * weight.itemsize for weight in reversed(trained)):
            score.add(simulation.first_step, held, "communication", "DDP bucket", "setup", trained[0].itemsize)
    else:
        shrink_held(simulation, score, sizes)
    if sharding.strategy == "fsdp2":
        FullyShardWalk(simulation, score, sizes).go()
    elif sharding.strategy in ZERO:
        spread_gradients(simulation, score, sizes)
        ZeroWalk(simulation, score, sizes).go()
    layers = sum(1 for unit in simulation.units if unit.is_layer)
    shares = sharding.ranks if sizes.shards_optimizer else 1
    return replace(
        score.written(),
        rank=Rank(sharding, states_of(simulation, sizes), layers),
        paged_bytes=-(-simulation.paged_bytes // shares),
    )


def bucket_bytes(gradients: Iterable[int]) -> list[int]:
    """Bytes of each bucket; gradients come in the order in which they are made, and a bucket is closed at its limit.
    Hand-worked, MiB: 0.5, 0.75, 20, 10, 3 are in buckets of 1.25, 30 and 3."""
    found: list[int] = []
    held, limit = 0, _FIRST_BUCKET
    for gradient in gradients:
        held += gradient
        if held >= limit:
            found.append(held)
            held, limit = 0, estimate.DDP_BUCKET_BYTES
    return [*found, held] if held else found


def planned_ranks(rank: Rank | None) -> PlannedRanks | None:
    if rank is None:
        return None
    sharding = rank.sharding
    offloaded = [name for name in ("optimizer", "parameters") if getattr(sharding, f"offload_{name}")]
    away = estimate.host_bytes(rank.states, sharding) * sharding.ranks
    host, disk = (0, away) if sharding.to_disk else (away, 0)
    return PlannedRanks(sharding.ranks, sharding.strategy, offloaded, host_bytes=host, disk_bytes=disk)


def rank_operators(operators: Sequence[OperatorWork], rank: Rank | None) -> Sequence[OperatorWork]:
    """Those of the whole model, the optimizer's on the rank's share of the weights, or on the host."""
    if rank is None or rank.sharding.strategy not in (*ZERO, "fsdp2"):
        return operators
    sharding = rank.sharding
    if sharding.steps_on_host:
        return [one for one in operators if one.family != "optimizer"]
    ranks = sharding.ranks
    return [
        replace(one, read_bytes=one.read_bytes // ranks, written_bytes=one.written_bytes // ranks)
        if one.family == "optimizer"
        else one
        for one in operators
    ]


@dataclass(frozen=True)
class Exchange:
    """What a rank exchanges with others and the host in an optimizer step: seconds in which the links are busy (None
    where no link is known), and of them those in which nothing is computed."""

    seconds: float | None
    exposed_seconds: float | None
    notes: tuple[str, ...] = ()


def exchange_of(rank: Rank, device: str, compute_seconds: float) -> Exchange:
    """Collectives beside computation, and transfers to and from the host beside nothing."""
    sharding, states = rank.sharding, rank.states
    seconds = exposed = 0.0
    collectives = estimate.step_collectives(states, sharding, rank.layers)
    if collectives:
        bandwidth = collective_bandwidth(device, sharding.ranks)
        if bandwidth is None:
            return Exchange(None, None, ("no time: how fast several of it communicate is not known",))
        # The weights of ZeRO-1 and 2 are gathered by the optimizer's step, beside nothing.
        beside = [one for one in collectives if one.of == "gradients" or sharding.strategy in WEIGHTS_SHARDED]
        overhead = overhead_seconds("collective_overhead")
        seconds, hidable = (
            estimate.communication_seconds(part, sharding.ranks, bandwidth, overhead) for part in (collectives, beside)
        )
        messages = sum(one.messages * one.times for one in beside)
        window = estimate.overlap_window_seconds(sharding, compute_seconds)
        exposed = seconds - estimate.hidden_seconds(hidable, window, messages)
    moved = host_bytes_moved(states, sharding)
    if moved and sharding.to_disk:
        return Exchange(None, None, ("no time: the speed of the disk at distributed.offload.nvme_path is not known",))
    if moved:
        link = host_bandwidth(device)
        if link is None:
            return Exchange(None, None, ("no time: how fast it exchanges data with the host is not known",))
        seconds += moved / link
        exposed += moved / link
    return Exchange(seconds, exposed)


def host_bytes_moved(states: ModelStates, sharding: Sharding) -> float:
    """Bytes that a rank exchanges with its host, or on to its disk, in an optimizer step. Of an offloaded optimizer its
    share of gradients down, of weights up; of offloaded weights its share up at each gathering, and gradients down."""
    shard = estimate.shard_elements(sharding.strategy, [(states.trained,)], sharding.ranks)
    moved = 0.0
    if sharding.offload_optimizer:
        moved += shard * (states.gradient_bytes + states.trained_bytes)
    if sharding.offload_parameters:
        kept = estimate.kept_elements(states, sharding) / max(1, states.trained + states.frozen)
        moved += states.weight_bytes / sharding.ranks * (2 - kept) * sharding.micro_batches
        if sharding.strategy not in ZERO:
            moved += shard * states.gradient_bytes
    return moved


def rank_remarks(recipe: Recipe, simulation: Simulation) -> Iterator[str]:
    """What a plan for several ranks takes for granted; for one process, only what ``auto`` counts for."""
    if simulation.rank is None:
        if recipe.distributed.processes == "auto":
            yield "distributed.processes: auto is planned as one process; --num-gpus N plans N"
        return
    sharding = simulation.rank.sharding
    weights, fsdp2 = list(simulation.weights.values()), sharding.strategy == "fsdp2"
    yield key_table("plan_words")["strategies"][sharding.strategy]
    if sharding.ranks > 1:
        yield "communication is hidden behind computation as far as its order allows: what is left of it is the least"
    if any(weight.packed for weight in weights) and fsdp2:
        yield (
            "4-bit weights are sharded as bytes, their constants are whole on each rank: that takes "
            "bnb_4bit_quant_storage in 16 bits; stored as uint8 accelerate leaves them whole as well"
        )
        whole = sum(weight.elements * weight.loaded_itemsize for weight in weights if not weight.trained)
        yield (
            f"loading: each process reads and quantizes the whole model in the host's memory, {size_text(whole)} for "
            f"each of {sharding.ranks} processes; a GPU then gets its share layer by layer"
        )
    if any(weight.quantized for weight in weights) and sharding.strategy == "zero3":
        yield "quantized weights are whole on each rank: DeepSpeed does not shard them (PEFT issue 2016)"
    if any(weight.quantized and not weight.packed for weight in weights) and fsdp2:
        yield "8-bit weights are whole on each rank: fully_shard does not shard integers"
    few = sum(1 for weight in weights if weight.shape and weight.shape[0] < sharding.ranks)
    if few and fsdp2:
        yield f"{few:,} parameters have fewer rows than there are ranks: some ranks hold none of them"
    if sharding.to_disk:
        yield "DeepSpeed's pinned buffers for what goes to the NVMe disk are in the host's memory, and are not planned"
    elif sharding.offload_optimizer or sharding.offload_parameters:
        yield "transfers to the host wait for PCIe in full; the optimizer's step on the host is not in the time"
        yield "the host's memory holds what is offloaded; the processes themselves and the loading come on top"
    if recipe.distributed.nodes > 1 or sharding.ranks > _MOST_IN_ONE_MACHINE:
        yield f"{sharding.ranks} GPUs exchange data as if all were in one machine: no network between machines"
    has_reference = OBJECTIVES[recipe.objective].reference and recipe.adapter.method == "full"
    if has_reference and sharding.strategy in WEIGHTS_SHARDED:
        yield "the reference model is planned whole on each rank: an upper bound"
    name = str(recipe.train.get("optim", ""))
    if is_bitsandbytes(name) and fsdp2:
        yield f"train.optim={name} crashes under FSDP2 (bitsandbytes issue 1633, open when read): adamw_torch runs"
