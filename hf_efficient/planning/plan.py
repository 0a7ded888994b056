"""A recipe in, its plan out: no GPU, no weights, no network. ``plan_run`` plans a run that begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from hf_efficient.estimate.cost import cost_usd, energy_from_tdp
from hf_efficient.facts import tables as facts
from hf_efficient.model.fast_step import settle_fast_step, settled_options
from hf_efficient.planning.arguments import PROMPT_TOKENS
from hf_efficient.planning.batches import RunShapes, run_shapes
from hf_efficient.planning.gpu import Demand, cpu_time, demand_of, on_cpu, planned_gpu, this_cpu, with_frontier
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.money import Terms, loss_remarks, pause_remarks, terms_of, with_costs
from hf_efficient.planning.ranks.rank import planned_ranks, rank_remarks, simulate_rank
from hf_efficient.planning.ranks.shares import sharding_of
from hf_efficient.planning.simulation import Simulation, held_by_category, planned_memory, planned_timeline
from hf_efficient.planning.target import target_remarks
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import as_planned
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan, PlannedData, PlannedGpu, PlannedMemory, PlannedRun, RunPlan

if TYPE_CHECKING:
    from trl import SFTConfig

    from hf_efficient.data.build import PreferenceData, SftData
    from hf_efficient.data.objectives import PromptData


def shape_remarks(shapes: RunShapes) -> list[str]:
    asks = f"a step asks for {shapes.step_rows:,} rows, and the data have {shapes.rows:,}"
    return [
        f"rows have {shapes.train.row_tokens:,} tokens, those of the largest micro-batch that the data can give",
        "a step or an evaluation takes as long as its positions, in proportion to those of the largest batch",
        *([f"{asks}: these are an epoch of one step"] if shapes.step_rows > shapes.rows else []),
    ]


def devices_of(gpus: str | Sequence[str] | None) -> Sequence[facts.Accelerator]:
    """All that are known for None; ``cpu`` is this machine's. Raises ``SetupError`` for a name that is not known."""
    if gpus is None:
        return facts.accelerators()
    if facts.names_cpu(gpus):
        return [this_cpu()]
    return [facts.accelerator(name) for name in ([gpus] if isinstance(gpus, str) else gpus)]


def plan(
    recipe: Recipe, gpus: str | Sequence[str] | None = None, *, num_gpus: int | None = None, read_data: bool = True
) -> Plan:
    """Simulate the recipe's own training on tensors without values; its memory, time and cost. ``read_data``: take the
    lengths of examples where data and tokenizer lie here; otherwise every row is as long as the recipe allows."""
    from hf_efficient.planning.run_data import data_at_hand, planned_data, rows_of

    devices = devices_of(gpus)
    if num_gpus is not None:
        recipe = change_recipe(recipe, {"distributed.processes": num_gpus})
    on_gpu = not facts.names_cpu(gpus)
    recipe = settle_fast_step(as_planned(recipe), "cuda") if on_gpu else on_cpu(as_planned(recipe))
    config = model_config(recipe.model)
    known = data_at_hand(recipe) if read_data else ""
    if isinstance(known, str):
        simulation = simulate_rank(recipe, config, on_gpu=on_gpu)
        longest = f"every row has {simulation.length:,} tokens, the most that the recipe allows: shorter ones need less"
        if OBJECTIVES[recipe.objective].generates:
            parts = f"{PROMPT_TOKENS} of a prompt (assumed), and the longest completion"
            longest = f"every row has {simulation.length:,} tokens: {parts}"
        why = f" ({known})" if known else ""
        return plan_of(recipe, simulation, demand_of(recipe, simulation), devices, [f"{longest}{why}"])
    args, data = known
    ranks = sharding_of(recipe).ranks
    shapes = run_shapes(args, rows_of(data, args), ranks, at_end=recipe.evaluate.at_end)
    simulation = simulate_rank(recipe, config, shapes, on_gpu=on_gpu)
    demand = demand_of(recipe, simulation, shapes, ranks)
    examples = planned_data(args, data, shapes, processes=ranks)
    return plan_of(recipe, simulation, demand, devices, shape_remarks(shapes), examples)


def plan_of(
    recipe: Recipe,
    simulation: Simulation,
    demand: Demand,
    devices: Sequence[facts.Accelerator],
    assumptions: Sequence[str],
    data: PlannedData | None = None,
) -> Plan:
    memory = replace(planned_memory(simulation), timeline=planned_timeline(simulation))
    terms = terms_of(recipe, memory, demand.tokens, simulation.rank, demand.saves)
    planned = [with_costs(planned_gpu(demand, one), one, terms) for one in devices]
    return Plan(
        recipe=recipe.name,
        model=recipe.model.id,
        adapter=recipe.adapter.method,
        parameters=simulation.parameters,
        trained_parameters=simulation.trained_parameters,
        micro_batch_rows=simulation.rows,
        row_tokens=simulation.length,
        micro_batches=simulation.micro_batches,
        steps=demand.steps,
        flops_per_step=sum(one.flops for one in simulation.operators) * demand.ranks,
        memory=memory,
        gpus=with_frontier(sorted(planned, key=_rank)),
        assumptions=[
            *assumptions,
            *([_errors(demand)] if any(one.vendor != facts.CPU for one in devices) else []),
            *rank_remarks(recipe, simulation),
            *_assumptions(recipe, demand.steps, memory),
            *pause_remarks(recipe, demand, terms, read=data is not None),
            *loss_remarks(planned, terms, demand.steps),
            *_facts_assumed(devices, planned, terms),
        ],
        data=data,
        ranks=planned_ranks(simulation.rank),
    )


def _rank(gpu: PlannedGpu) -> tuple[bool, bool, float, int]:
    """Those that fit first, the cheapest per token first, the smallest first."""
    cost = gpu.usd_per_million_tokens
    return not gpu.fits, cost is None, cost or 0.0, gpu.usable_memory_bytes


def _assumptions(recipe: Recipe, steps: int | None, memory: PlannedMemory) -> Iterator[str]:
    if steps is None:
        yield "the number of steps depends on the data: write train.max_steps=N for the time of the whole run"
    yield from target_remarks(recipe)
    if settled_options(recipe).get("loss_type") == "chunked_nll" and memory.categories.get("logits"):
        yield (
            "logits at the peak are a piece of them, which the head frees at once; a run's report counts logits that "
            "are kept for the backward: none"
        )


def _errors(demand: Demand) -> str:
    memory, speed = demand.errors
    of = "an adapter" if demand.adapted else "a whole model"
    on = "several GPUs" if demand.ranks > 1 else "one GPU"
    return (
        f"how sure: of {memory.trainings} published trainings of {of} on {on} (A100), nine in ten came within "
        f"{memory.low:+.1%} to {memory.high:+.1%} of the planned memory, {speed.low:+.0%} to {speed.high:+.0%} of the "
        "planned tokens/s. Other GPUs and software may differ more"
    )


def _facts_assumed(devices: Sequence[facts.Accelerator], gpus: Sequence[PlannedGpu], terms: Terms) -> Iterator[str]:
    if any(gpu.spot for gpu in gpus):
        if terms.spot.assumed:
            yield f"spot: {', '.join(terms.spot.assumed)}: cost.spot changes that"
        yield "spot: the time until there is a machine again is not known, and in no figure"
    if estimated := ", ".join(device.name for device in devices if device.usable_is_estimated):
        yield (
            f"{estimated}: how much of its memory torch can use is not known: {facts.USABLE_SHARE:.0%} are taken, the "
            "smallest share that is known of any; usable_gib in your own accelerators.yaml changes that"
        )
    if own := ", ".join(device.name for device in devices if device.own):
        yield f"{own}: memory, rates and power are those of your own facts"


def plan_run(
    recipe: Recipe, args: SFTConfig, data: SftData | PreferenceData | PromptData, price_usd_per_hour: float | None
) -> RunPlan:
    """Simulate the run's largest micro-batch; the process stays as it was. The price is of all it occupies."""
    from hf_efficient.planning.run_data import planned_data, rows_of

    shapes = run_shapes(args, rows_of(data, args), args.world_size, at_end=recipe.evaluate.at_end)
    on_gpu, on_cuda = args.device.type != "cpu", args.device.type == "cuda"
    if not on_gpu and recipe.train.get("bf16") is None:  # as a measurement of this CPU has settled it
        recipe = recipe.model_copy(update={"train": {**recipe.train, "bf16": args.bf16}})
    device = torch.cuda.get_device_name(args.device) if on_cuda else this_cpu().name
    known = facts.accelerator_of_device(device) if on_cuda else None
    simulation = simulate_rank(recipe, model_config(recipe.model), shapes, on_gpu=on_gpu, processes=args.world_size)
    assumptions = shape_remarks(shapes)
    if not on_gpu and args.world_size > 1:
        assumptions.append("what processes on CPUs exchange takes no time in it: how fast that is, is not known")
    demand = demand_of(recipe, simulation, shapes, args.world_size)
    examples = planned_data(args, data, shapes, args.world_size)
    planned = plan_of(recipe, simulation, demand, [] if known is None else [known], assumptions, examples)
    gpu = planned.gpus[0] if planned.gpus else None
    if on_cuda:
        step = None if gpu is None else gpu.step_seconds
        why = f"no rates of {device} are known" if gpu is None else "; ".join(gpu.notes)
    else:
        time, why = cpu_time(demand.operators, demand.no_time)
        step = None if time is None else time.seconds * demand.step_share
    training = None if step is None else step * shapes.train.steps
    watts = None if known is None else known.tdp_watts
    joules = None if training is None or watts is None else energy_from_tdp(watts, training, devices=args.world_size)
    missing = {
        "time": why if step is None else None,
        "cost": "no price is known: set cost.price_usd_per_hour" if price_usd_per_hour is None else None,
        "energy": f"the power of {device} is not known" if watts is None else None,
    }
    run = PlannedRun(
        device=device,
        steps=shapes.train.steps,
        positions=simulation.rows * simulation.length,
        step_tokens=shapes.train.step_tokens,
        categories=held_by_category(simulation),
        peak_allocated_bytes=planned.memory.peak_allocated_bytes if on_cuda else None,
        peak_reserved_bytes=None if gpu is None else gpu.reserved_bytes,
        fits=None if gpu is None else gpu.fits,
        step_seconds=step,
        tokens_per_second=None if step is None else shapes.train.step_tokens / step,
        training_seconds=training,
        training_cost_usd=None if training is None else cost_usd(training, price_usd_per_hour),
        training_energy_joules=joules,
        reasons={name: why for name, why in missing.items() if why is not None},
    )
    return RunPlan(planned, run)
