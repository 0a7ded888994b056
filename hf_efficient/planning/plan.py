"""A recipe in, its plan out: no GPU, no weights, no network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hf_efficient.facts.accelerators import USABLE_SHARE, Accelerator, accelerator, accelerators
from hf_efficient.planning.data_at_hand import data_at_hand
from hf_efficient.planning.demand import demand_of
from hf_efficient.planning.eight_bit import is_eight_bit
from hf_efficient.planning.frontier import with_frontier
from hf_efficient.planning.gpu import Demand, planned_gpu
from hf_efficient.planning.memory import planned_memory, planned_timeline
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.money import with_costs
from hf_efficient.planning.pause_remarks import pause_remarks
from hf_efficient.planning.ranks.rank import rehearse_rank
from hf_efficient.planning.ranks.remarks import rank_remarks
from hf_efficient.planning.ranks.sharding import sharding_of
from hf_efficient.planning.ranks.told import planned_ranks
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.planning.run_data import planned_data
from hf_efficient.planning.run_shapes import rows_of, run_shapes
from hf_efficient.planning.shaped import rehearse_shapes, shape_remarks
from hf_efficient.planning.terms import Terms, terms_of
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.distributed import as_planned
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan, PlannedData, PlannedGpu


def plan(
    recipe: Recipe, gpus: Sequence[str] | None = None, *, num_gpus: int | None = None, read_data: bool = True
) -> Plan:
    """Rehearse the recipe's own training on tensors without values, and tell its memory, time and cost.

    Args:
        recipe: from ``load_recipe``.
        gpus: names of accelerators; None: all that are known.
        num_gpus: that train, in the place of ``distributed.processes``.
        read_data: take the lengths of the recipe's examples where data and tokenizer lie on this machine; else, and
            where they do not, every row is as long as the recipe allows.

    Raises:
        HfEfficientError: one of its kinds: an accelerator that is not known, a model that cannot be built, data that
            cannot be read, values that the run itself would refuse.
    """
    devices: Sequence[Accelerator] = accelerators() if gpus is None else [accelerator(name) for name in gpus]
    if num_gpus is not None:
        recipe = change_recipe(recipe, {"distributed.processes": num_gpus})
    recipe = as_planned(recipe)
    config = model_config(recipe.model)
    known = data_at_hand(recipe) if read_data else ""
    if isinstance(known, str):
        rehearsal = rehearse_rank(recipe, config)
        longest = f"every row has {rehearsal.length:,} tokens, the most that the recipe allows: shorter ones need less"
        why = f" ({known})" if known else ""
        return plan_of(recipe, rehearsal, demand_of(recipe, rehearsal), devices, [f"{longest}{why}"])
    ranks = sharding_of(recipe).ranks
    shapes = run_shapes(known.args, rows_of(known.data, known.args), ranks, at_end=recipe.evaluate.at_end)
    rehearsal = rehearse_shapes(recipe, config, shapes)
    told = planned_data(known.args, known.data, shapes, processes=ranks)
    demand = demand_of(recipe, rehearsal, shapes, ranks)
    return plan_of(recipe, rehearsal, demand, devices, shape_remarks(shapes), told)


def plan_of(
    recipe: Recipe,
    rehearsal: Rehearsal,
    demand: Demand,
    devices: Sequence[Accelerator],
    assumptions: Sequence[str],
    data: PlannedData | None = None,
) -> Plan:
    """The plan of a rehearsal.

    Args:
        recipe: that was rehearsed.
        rehearsal: of it.
        demand: of it.
        devices: that it might run on.
        assumptions: what the rehearsal's shapes take for granted; others are added.
        data: of the run; None where they were not read.
    """
    memory = dataclasses.replace(planned_memory(rehearsal), timeline=planned_timeline(rehearsal))
    terms = terms_of(recipe, memory, demand.tokens, rehearsal.rank, demand.saves)
    planned = [with_costs(planned_gpu(demand, device), device, terms) for device in devices]
    return Plan(
        recipe=recipe.name,
        model=recipe.model.id,
        adapter=recipe.adapter.method,
        parameters=rehearsal.parameters,
        trained_parameters=rehearsal.trained_parameters,
        micro_batch_rows=rehearsal.rows,
        row_tokens=rehearsal.length,
        micro_batches=rehearsal.micro_batches,
        steps=demand.steps,
        flops_per_step=sum(one.flops for one in rehearsal.operators) * demand.ranks,
        memory=memory,
        gpus=with_frontier(sorted(planned, key=_rank)),
        assumptions=[
            *assumptions,
            *rank_remarks(recipe, rehearsal),
            *_assumptions(recipe, demand.steps),
            *pause_remarks(recipe, demand, terms, read=data is not None),
            *_spot_assumptions(planned, terms),
            *_usable_memory(devices),
            *_own_facts(devices),
        ],
        data=data,
        ranks=planned_ranks(rehearsal.rank),
    )


def _rank(gpu: PlannedGpu) -> tuple[bool, bool, float, int]:
    """Those that fit first, the cheapest per token first, the smallest first."""
    cost = gpu.usd_per_million_tokens
    return not gpu.fits, cost is None, cost or 0.0, gpu.usable_memory_bytes


def _assumptions(recipe: Recipe, steps: int | None) -> list[str]:
    told = []
    if steps is None:
        told.append("the number of steps depends on the data: write train.max_steps=N for the time of the whole run")
    told += [
        f"train.{name} is not simulated: its kernels need a GPU"
        for name in ("use_liger_kernel", "activation_offloading", "torch_compile")
        if recipe.train.get(name)
    ]
    if is_eight_bit(recipe):
        told.append("inputs that LLM.int8() multiplies in 16 bits are not known before the run: none are planned")
    if recipe.train.get("precompute_ref_log_probs"):
        told.append(
            "train.precompute_ref_log_probs is not rehearsed: the reference model is taken to run in every step"
        )
    if recipe.train.get("fp16"):
        told.append("train.fp16 is simulated in bfloat16, whose tensors are as large")
    return told


def _spot_assumptions(gpus: Sequence[PlannedGpu], terms: Terms) -> list[str]:
    if not any(gpu.spot for gpu in gpus):
        return []
    told = [f"spot: {', '.join(terms.spot.assumed)}: efficiency.spot changes that"] if terms.spot.assumed else []
    return [*told, "spot: the time until there is a machine again is not known, and in no figure"]


def _usable_memory(devices: Sequence[Accelerator]) -> list[str]:
    names = ", ".join(device.name for device in devices if device.usable_is_estimated)
    told = (
        f"{names}: how much of its memory torch can use is not known: {USABLE_SHARE:.0%} are taken, the smallest share "
        "that is known of any; usable_gib in your own accelerators.yaml changes that"
    )
    return [told] if names else []


def _own_facts(devices: Sequence[Accelerator]) -> list[str]:
    own = [device.name for device in devices if device.own]
    return [f"{', '.join(own)}: memory, rates and power are those of your own facts"] if own else []
