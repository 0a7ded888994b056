"""A recipe in, its plan out: no GPU, no weights, no network. ``plan_run`` plans a run that begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.energy import energy_from_tdp
from hf_efficient.facts.accelerators import (
    CPU,
    USABLE_SHARE,
    Accelerator,
    accelerator,
    accelerator_of_device,
    accelerators,
    names_cpu,
)
from hf_efficient.model.fast_step import settle_fast_step, settled_options
from hf_efficient.planning.blank_model import is_eight_bit
from hf_efficient.planning.cpu import cpu_name, cpu_time, on_cpu, planned_cpu, this_cpu
from hf_efficient.planning.gpu import Demand, demand_of, planned_gpu, with_frontier
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.money import Terms, pause_remarks, terms_of, with_costs
from hf_efficient.planning.ranks.rank import planned_ranks, rank_remarks, simulate_rank
from hf_efficient.planning.ranks.shares import sharding_of
from hf_efficient.planning.run_shapes import RunShapes, run_shapes
from hf_efficient.planning.simulation import (
    PROMPT_TOKENS,
    Simulation,
    held_by_category,
    planned_memory,
    planned_timeline,
)
from hf_efficient.planning.target import target_remarks
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import as_planned
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan, PlannedData, PlannedGpu, PlannedMemory, PlannedRun, RunPlan

if TYPE_CHECKING:
    from trl import SFTConfig

    from hf_efficient.data.build import PreferenceData, SftData
    from hf_efficient.data.prompts import PromptData


def shape_remarks(shapes: RunShapes) -> list[str]:
    remarks = [
        f"rows have {shapes.train.row_tokens:,} tokens, those of the largest micro-batch that the data can give",
        "a step or an evaluation takes as long as its positions, in proportion to those of the largest batch",
    ]
    if shapes.step_rows > shapes.rows:
        remarks.append(
            f"a step asks for {shapes.step_rows:,} rows, and the data have {shapes.rows:,}: these are an epoch of one "
            "step"
        )
    return remarks


def devices_of(gpus: str | Sequence[str] | None) -> Sequence[Accelerator]:
    """All that are known for None; ``cpu`` is this machine's. Raises ``SetupError`` for a name that is not known."""
    if gpus is None:
        return accelerators()
    if names_cpu(gpus):
        return [this_cpu()]
    return [accelerator(name) for name in ([gpus] if isinstance(gpus, str) else gpus)]


def plan(
    recipe: Recipe, gpus: str | Sequence[str] | None = None, *, num_gpus: int | None = None, read_data: bool = True
) -> Plan:
    """Simulate the recipe's own training on tensors without values; its memory, time and cost. ``read_data``: take the
    examples' lengths where data and tokenizer lie on this machine; otherwise every row is as long as the recipe
    allows."""
    from hf_efficient.planning.run_data import data_at_hand, planned_data, rows_of

    devices = devices_of(gpus)
    if num_gpus is not None:
        recipe = change_recipe(recipe, {"distributed.processes": num_gpus})
    on_gpu = not names_cpu(gpus)
    recipe = settle_fast_step(as_planned(recipe), "cuda") if on_gpu else on_cpu(as_planned(recipe))
    config = model_config(recipe.model)
    known = data_at_hand(recipe) if read_data else ""
    if isinstance(known, str):
        simulation = simulate_rank(recipe, config, on_gpu=on_gpu)
        longest = _row_words(recipe, simulation.length)
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
    devices: Sequence[Accelerator],
    assumptions: Sequence[str],
    data: PlannedData | None = None,
) -> Plan:
    memory = dataclasses.replace(planned_memory(simulation), timeline=planned_timeline(simulation))
    terms = terms_of(recipe, memory, demand.tokens, simulation.rank, demand.saves)
    peak = memory.peak_allocated_bytes
    planned = [
        with_costs(planned_cpu(demand, one, peak) if one.vendor == CPU else planned_gpu(demand, one), one, terms)
        for one in devices
    ]
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
            *(_errors(demand) if any(one.vendor != CPU for one in devices) else []),
            *rank_remarks(recipe, simulation),
            *_assumptions(recipe, demand.steps),
            *_logits_remark(recipe, memory),
            *pause_remarks(recipe, demand, terms, read=data is not None),
            *_spot_assumptions(planned, terms),
            *_usable_memory(devices),
            *_own_facts(devices),
        ],
        data=data,
        ranks=planned_ranks(simulation.rank),
    )


def _rank(gpu: PlannedGpu) -> tuple[bool, bool, float, int]:
    """Those that fit first, the cheapest per token first, the smallest first."""
    cost = gpu.usd_per_million_tokens
    return not gpu.fits, cost is None, cost or 0.0, gpu.usable_memory_bytes


def _assumptions(recipe: Recipe, steps: int | None) -> list[str]:
    remarks = []
    if steps is None:
        remarks.append("the number of steps depends on the data: write train.max_steps=N for the time of the whole run")
    remarks += target_remarks(recipe)
    if OBJECTIVES[recipe.objective].generates:
        remarks += _completion_remarks(recipe)
    if is_eight_bit(recipe):
        remarks.append("inputs that LLM.int8() multiplies in 16 bits are not known before the run: none are planned")
    if recipe.train.get("precompute_ref_log_probs"):
        remarks.append(
            "train.precompute_ref_log_probs is not simulated: the reference model is taken to run in every step"
        )
    if recipe.train.get("fp16"):
        remarks.append("train.fp16 is simulated in bfloat16, whose tensors are as large")
    return remarks


def _logits_remark(recipe: Recipe, memory: PlannedMemory) -> list[str]:
    chunked = settled_options(recipe).get("loss_type") == "chunked_nll"
    remark = (
        "logits at the peak are a piece of them, which the head frees at once; a run's report counts logits that are "
        "kept for the backward: none"
    )
    return [remark] if chunked and memory.categories.get("logits") else []


def _row_words(recipe: Recipe, length: int) -> str:
    if OBJECTIVES[recipe.objective].generates:
        return f"every row has {length:,} tokens: {PROMPT_TOKENS} of a prompt (assumed), and the longest completion"
    return f"every row has {length:,} tokens, the most that the recipe allows: shorter ones need less"


def _completion_remarks(recipe: Recipe) -> list[str]:
    remarks = [
        "completions are taken to be as long as train.max_completion_length allows: shorter ones need less",
        "the FLOPs of a step are those of the update alone",
    ]
    if recipe.train.get("use_vllm"):
        return [*remarks, "vLLM's memory is not in it: train.vllm_gpu_memory_utilization says how much it takes"]
    return [
        *remarks,
        "generation is an estimate: a prefill, the cache of keys and values at full length, the logits of a token",
    ]


def _errors(demand: Demand) -> list[str]:
    memory, speed = demand.errors
    of = "an adapter" if demand.adapted else "a whole model"
    on = "several GPUs" if demand.ranks > 1 else "one GPU"
    return [
        f"errors: memory {memory.low:+.1%} {memory.high:+.1%}, tokens/s {speed.low:+.0%} {speed.high:+.0%}, as in "
        f"{memory.trainings} published trainings of {of} on {on} (A100); other GPUs and software may differ more"
    ]


def _spot_assumptions(gpus: Sequence[PlannedGpu], terms: Terms) -> list[str]:
    if not any(gpu.spot for gpu in gpus):
        return []
    remarks = [f"spot: {', '.join(terms.spot.assumed)}: cost.spot changes that"] if terms.spot.assumed else []
    return [*remarks, "spot: the time until there is a machine again is not known, and in no figure"]


def _usable_memory(devices: Sequence[Accelerator]) -> list[str]:
    names = ", ".join(device.name for device in devices if device.usable_is_estimated)
    remarks = (
        f"{names}: how much of its memory torch can use is not known: {USABLE_SHARE:.0%} are taken, the smallest share "
        "that is known of any; usable_gib in your own accelerators.yaml changes that"
    )
    return [remarks] if names else []


def _own_facts(devices: Sequence[Accelerator]) -> list[str]:
    own = [device.name for device in devices if device.own]
    return [f"{', '.join(own)}: memory, rates and power are those of your own facts"] if own else []


def plan_run(
    recipe: Recipe, args: SFTConfig, data: SftData | PreferenceData | PromptData, price_usd_per_hour: float | None
) -> RunPlan:
    """Simulate the run's largest micro-batch; nothing of the process is different afterwards. The price is of
    everything that the run occupies."""
    from hf_efficient.planning.run_data import planned_data, rows_of

    shapes = run_shapes(args, rows_of(data, args), args.world_size, at_end=recipe.evaluate.at_end)
    on_gpu = args.device.type != "cpu"
    simulation = simulate_rank(recipe, model_config(recipe.model), shapes, on_gpu=on_gpu, processes=args.world_size)
    known = None if args.device.type != "cuda" else accelerator_of_device(torch.cuda.get_device_name(args.device))
    assumptions = shape_remarks(shapes)
    if not on_gpu and args.world_size > 1:
        assumptions.append("what processes on CPUs exchange takes no time in it: how fast that is, is not known")
    demand = demand_of(recipe, simulation, shapes, args.world_size)
    examples = planned_data(args, data, shapes, args.world_size)
    plan = plan_of(recipe, simulation, demand, [] if known is None else [known], assumptions, examples)
    return RunPlan(plan, _planned_run(plan, demand, simulation, shapes, args, known, price_usd_per_hour))


def _planned_run(
    plan: Plan,
    demand: Demand,
    simulation: Simulation,
    shapes: RunShapes,
    args: SFTConfig,
    known: Accelerator | None,
    price_usd_per_hour: float | None,
) -> PlannedRun:
    gpu, gpus = plan.gpus[0] if plan.gpus else None, args.world_size
    on_gpu = args.device.type == "cuda"
    reasons: dict[str, str] = {}
    device = torch.cuda.get_device_name(args.device) if on_gpu else cpu_name()
    step = None if gpu is None else gpu.step_seconds
    if not on_gpu:
        time, why = cpu_time(demand.operators, demand.no_time)
        step = None if time is None else time.seconds * demand.step_share
        reasons |= {"time": why} if why else {}
    elif step is None:
        reasons["time"] = "; ".join(gpu.notes) if gpu is not None else f"no rates of {device} are known"
    training = None if step is None else step * shapes.train.steps
    if price_usd_per_hour is None:
        reasons["cost"] = "no price is known: set cost.price_usd_per_hour"
    watts = None if known is None else known.tdp_watts
    if watts is None:
        reasons["energy"] = f"the power of {device} is not known"
    return PlannedRun(
        device=device,
        steps=shapes.train.steps,
        positions=simulation.rows * simulation.length,
        step_tokens=shapes.train.step_tokens,
        categories=held_by_category(simulation),
        peak_allocated_bytes=plan.memory.peak_allocated_bytes if on_gpu else None,
        peak_reserved_bytes=None if gpu is None else gpu.reserved_bytes,
        fits=None if gpu is None else gpu.fits,
        step_seconds=step,
        tokens_per_second=None if step is None else shapes.train.step_tokens / step,
        training_seconds=training,
        training_cost_usd=None if training is None else cost_usd(training, price_usd_per_hour),
        training_energy_joules=None
        if training is None or watts is None
        else energy_from_tdp(watts, training, devices=gpus),
        reasons=reasons,
    )
