"""The headline figures of a plan."""

from __future__ import annotations

import math

from hf_efficient.records.plan import Plan
from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.records.planned_ranks import PlannedRanks
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.html.sections.summary import Tile
from hf_efficient.report.phases import phase_label
from hf_efficient.report.plan_ranks import offload_figure, offloaded_label, strategy_label
from hf_efficient.units import count, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

__all__ = ["planned_summary", "planned_tiles"]


def planned_summary(plan: Plan) -> Section:
    """The figures that a plan is told in first."""
    return Section("summary", "In short", context={"tiles": planned_tiles(plan)})


def planned_tiles(plan: Plan) -> list[Tile]:
    """Of the one accelerator, or of the fastest and the cheapest that fit."""
    tokens = math.prod(plan.step_rows)
    rows = " x ".join(f"{one:,}" for one in plan.step_rows)
    shape = f"{'' if plan.data is None else 'at most: '}{rows}, {flops(plan.flops_per_step)}FLOP"
    trained = f"of {count(plan.parameters)} ({plan.adapter})"
    return [
        _fits(plan),
        _peak(plan),
        _time(plan),
        _cost(plan),
        _spot(plan),
        _energy(plan),
        Tile("Tokens in a step", f"{tokens:,}", shape),
        Tile("Trained parameters", count(plan.trained_parameters), trained),
        *([] if plan.ranks is None else _ranks(plan.ranks)),
    ]


def _ranks(ranks: PlannedRanks) -> list[Tile]:
    gpus = Tile("GPUs", f"{ranks.count}", f"{strategy_label(ranks.strategy)}, memory is that of each")
    if not ranks.offloaded:
        return [gpus]
    return [gpus, Tile(*offload_figure(ranks), f"{offloaded_label(ranks.offloaded)} of all")]


def _fits(plan: Plan) -> Tile:
    if len(plan.gpus) == 1:
        gpu = plan.gpus[0]
        usable = gpu.usable_memory_bytes
        note = f"{size(gpu.needed_bytes)} of {size(usable)}, {share(gpu.needed_bytes / usable)}"
        return Tile(f"Fits {gpu.name}", "yes" if gpu.fits else "no", note)
    fitting = [gpu for gpu in plan.gpus if gpu.fits]
    if not fitting:
        return Tile("Fits", "nowhere", f"{len(plan.gpus)} accelerators asked")
    smallest = min(fitting, key=lambda gpu: gpu.usable_memory_bytes)
    return Tile("Fits", f"{len(fitting)} of {len(plan.gpus)}", f"the smallest is {_named(smallest)}")


def _named(gpu: PlannedGpu) -> str:
    return f"{gpu.name} with {gpu.usable_memory_bytes / 2**30:.1f} GiB"


def _peak(plan: Plan) -> Tile:
    memory = plan.memory
    step = " of the first step" if memory.peak_step == 1 else " of later steps"
    if memory.peak_phase == "evaluation":
        step = ""
    return Tile("Peak allocated", size(memory.peak_allocated_bytes), f"in the {phase_label(memory.peak_phase)}{step}")


def _time(plan: Plan) -> Tile:
    known = [gpu for gpu in plan.gpus if gpu.fits and gpu.step_seconds is not None]
    label = "Time" if len(plan.gpus) == 1 else "Fastest"
    if not known:
        return Tile(label, None, "no rate of the accelerators that fit is known")
    gpu = min(known, key=lambda one: one.step_seconds or 0.0)
    step = f"{short_seconds(gpu.step_seconds or 0.0)} a step"
    if plan.steps is None or gpu.run_seconds is None:
        return Tile(label, step.removesuffix(" a step"), f"a step on {gpu.name}", estimated=True)
    return Tile(label, seconds(gpu.run_seconds), f"{plan.steps:,} steps on {gpu.name}, {step}", estimated=True)


def _cost(plan: Plan) -> Tile:
    label = "Cost" if len(plan.gpus) == 1 else "Cheapest"
    known = [gpu for gpu in plan.gpus if gpu.fits and gpu.usd_per_million_tokens is not None]
    if not known:
        return Tile(label, None, "no price of an accelerator that fits is known")
    gpu = min(known, key=lambda one: one.usd_per_million_tokens or 0.0)
    each = f"{usd(gpu.usd_per_million_tokens or 0.0)} per million tokens"
    if plan.steps is None or gpu.run_usd is None:
        return Tile(label, usd(gpu.usd_per_million_tokens or 0.0), f"per million tokens on {gpu.name}", estimated=True)
    return Tile(label, usd(gpu.run_usd), f"{gpu.name}, {seconds(gpu.run_seconds or 0.0)}; {each}", estimated=True)


def _spot(plan: Plan) -> Tile:
    known = [
        (gpu.spot.usd_per_million_tokens, gpu.name, gpu.spot)
        for gpu in plan.gpus
        if gpu.fits and gpu.spot is not None and gpu.spot.usd_per_million_tokens is not None
    ]
    label = "On spot machines" if len(plan.gpus) == 1 else "Cheapest on spot"
    if not known:
        return Tile(label, None, "no spot price of an accelerator that fits is known")
    each, name, spot = min(known, key=lambda one: one[0])
    note = f"{name}, saved every {spot.save_every_steps:,} steps"
    if plan.steps is None or spot.run_usd is None:
        return Tile(label, usd(each), f"per million tokens on {note}", estimated=True)
    return Tile(label, usd(spot.run_usd), f"{note}, {share(spot.overhead_share or 0.0)} more time", estimated=True)


def _energy(plan: Plan) -> Tile:
    known = [gpu for gpu in plan.gpus if gpu.fits and gpu.kwh_per_million_tokens is not None]
    label = "Energy" if len(plan.gpus) == 1 else "Least energy"
    if not known:
        return Tile(label, None, "the power of no accelerator that fits is known")
    gpu = min(known, key=lambda one: one.kwh_per_million_tokens or 0.0)
    whole = plan.steps is not None and gpu.run_kwh is not None
    kwh = gpu.run_kwh if whole else gpu.kwh_per_million_tokens
    co2e = gpu.run_co2e_grams if whole else gpu.co2e_grams_per_million_tokens
    gas = "" if co2e is None else f", {grams(co2e)} CO₂e"
    per = "" if whole else "per million tokens "
    return Tile(label, kilowatt_hours((kwh or 0.0) * 3.6e6), f"{per}on {gpu.name}{gas}", estimated=True)
