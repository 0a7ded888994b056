"""The page of a plan."""

import math
from collections.abc import Callable
from datetime import datetime

from hf_efficient.records.plan import Plan, PlannedGpu
from hf_efficient.reporting import plan as words
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.labels import in_gib, tensor_shape
from hf_efficient.reporting.plots.memory import planned_memory_over_steps, time_against_money
from hf_efficient.text import count, counted, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd


def plan_page(plan: Plan, command: str, written: datetime | None = None) -> str:
    notes = {"assumptions": words.taken_for_granted(plan), "gaps": words.unknown_of(plan.gpus)}
    memory = plan.memory
    kinds = sorted(((name, held) for name, held in memory.categories.items() if held), key=lambda one: -one[1])
    at_peak = {"kinds": kinds, "memory": memory}
    sections = [
        Section("summary", "In short", context={"tiles": planned_tiles(plan)}),
        Section("planned_memory", "Memory", [planned_memory_over_steps(memory)], at_peak),
        None if plan.data is None else Section("planned_data", "Data", context={"data": plan.data, "words": words}),
        _gpus(plan),
        _advice(plan),
        Section("planned_notes", "Taken for granted", context=notes, short="Assumptions"),
    ]
    return render(
        "plan",
        sections,
        span=None,
        title=f"{plan.recipe}: plan · hf_efficient",
        kind="plan",
        command=command,
        written=written,
        plan=plan,
        fits=sum(gpu.fits for gpu in plan.gpus),
    )


def planned_tiles(plan: Plan) -> list[Tile]:
    shape = (
        f"{'' if plan.data is None else 'at most: '}{tensor_shape(plan.step_rows)}, {flops(plan.flops_per_step)}FLOP"
    )
    trained = f"of {count(plan.parameters)} ({plan.adapter})"
    peak = f"in the {words.peak_phase(plan.memory, 'of later steps')}"
    ranks, machines = plan.ranks, []
    if ranks is not None:
        machines = [Tile("GPUs", f"{ranks.count}", f"{words.strategy_label(ranks.strategy)}, memory is that of each")]
    if ranks is not None and ranks.offloaded:
        machines.append(Tile(*words.offload_figure(ranks), f"{words.offloaded_label(ranks.offloaded)} of all"))
    return [
        _fits_tile(plan),
        Tile("Peak allocated", size(plan.memory.peak_allocated_bytes), peak),
        _time_tile(plan),
        _cost_tile(plan),
        _spot_tile(plan),
        _energy_tile(plan),
        Tile("Tokens in a step", f"{math.prod(plan.step_rows):,}", shape),
        Tile("Trained parameters", count(plan.trained_parameters), trained),
        *machines,
    ]


def _fits_tile(plan: Plan) -> Tile:
    if len(plan.gpus) == 1:
        gpu = plan.gpus[0]
        usable = gpu.usable_memory_bytes
        note = (
            f"{size(gpu.needed_bytes)}{words.needed_error(gpu)} of {size(usable)}, {share(gpu.needed_bytes / usable)}"
        )
        return Tile(f"Fits {gpu.name}", words.fits_label(gpu), note)
    fitting = [gpu for gpu in plan.gpus if gpu.fits]
    if not fitting:
        return Tile("Fits", "nowhere", f"{len(plan.gpus)} accelerators asked")
    smallest = min(fitting, key=lambda gpu: gpu.usable_memory_bytes)
    named = f"{smallest.name} with {in_gib(smallest.usable_memory_bytes)} GiB"
    return Tile("Fits", f"{len(fitting)} of {len(plan.gpus)}", f"the smallest is {named}")


def _least(plan: Plan, figure: Callable[[PlannedGpu], float | None]) -> tuple[float, PlannedGpu] | None:
    each = [(figure(gpu), gpu) for gpu in plan.gpus if gpu.fits]
    return min([(value, gpu) for value, gpu in each if value is not None], key=lambda one: one[0], default=None)


def _time_tile(plan: Plan) -> Tile:
    label = "Time" if len(plan.gpus) == 1 else "Fastest"
    found = _least(plan, lambda gpu: gpu.step_seconds)
    if found is None:
        return Tile(label, None, "no rate of the accelerators that fit is known")
    step, gpu = short_seconds(found[0]), found[1]
    if plan.steps is None or gpu.run_seconds is None:
        return Tile(label, step, f"a step on {gpu.name}", estimated=True)
    return Tile(
        label, seconds(gpu.run_seconds), f"{counted(plan.steps, 'step')} on {gpu.name}, {step} a step", estimated=True
    )


def _cost_tile(plan: Plan) -> Tile:
    label = "Cost" if len(plan.gpus) == 1 else "Cheapest"
    found = _least(plan, lambda gpu: gpu.usd_per_million_tokens)
    if found is None:
        return Tile(label, None, "no price of an accelerator that fits is known")
    paid, gpu = usd(found[0]), found[1]
    if plan.steps is None or gpu.run_usd is None:
        return Tile(label, paid, f"per million tokens on {gpu.name}", estimated=True)
    note = f"{gpu.name}, {seconds(gpu.run_seconds or 0.0)}; {paid} per million tokens"
    return Tile(label, usd(gpu.run_usd), note, estimated=True)


def _spot_tile(plan: Plan) -> Tile:
    label = "On spot machines" if len(plan.gpus) == 1 else "Cheapest on spot"
    found = _least(plan, lambda gpu: gpu.spot.usd_per_million_tokens if gpu.spot else None)
    if found is None or found[1].spot is None:
        return Tile(label, None, "no spot price of an accelerator that fits is known")
    spot = found[1].spot
    note = f"{found[1].name}, saved every {spot.save_every_steps:,} steps"
    if plan.steps is None or spot.run_usd is None:
        return Tile(label, usd(found[0]), f"per million tokens on {note}", estimated=True)
    return Tile(label, usd(spot.run_usd), f"{note}, {share(spot.overhead_share or 0.0)} more time", estimated=True)


def _energy_tile(plan: Plan) -> Tile:
    label = "Energy" if len(plan.gpus) == 1 else "Least energy"
    found = _least(plan, lambda gpu: gpu.kwh_per_million_tokens)
    if found is None:
        return Tile(label, None, "the power of no accelerator that fits is known")
    kwh, gpu = found
    co2e, per = gpu.co2e_grams_per_million_tokens, "per million tokens "
    if plan.steps is not None and gpu.run_kwh is not None:
        kwh, co2e, per = gpu.run_kwh, gpu.run_co2e_grams, ""
    gas = "" if co2e is None else f", {grams(co2e)} CO₂e"
    return Tile(label, kilowatt_hours(kwh * 3.6e6), f"{per}on {gpu.name}{gas}", estimated=True)


def _gpus(plan: Plan) -> Section | None:
    if not plan.gpus:
        return None
    columns = [column for column in words.gpu_columns(plan) if column.head not in ("fits", "why")]  # it marks the rows
    context = {
        "heads": ["accelerator", *(f"#{column.head}" for column in columns), "price from"],
        "rows": [(gpu, [str(column.cell(gpu)) for column in columns], _spot_source(gpu)) for gpu in plan.gpus],
    }
    return Section("planned_gpus", "Accelerators", [time_against_money(plan)], context)


def _spot_source(gpu: PlannedGpu) -> str:
    spot = gpu.spot
    if spot is None or spot.price_usd_per_hour is None:
        return ""
    every = f", saved every {spot.save_every_steps:,} steps" if spot.save_every_steps else ""
    return f"{usd(spot.price_usd_per_hour)} an hour from {spot.price_source}{every}"


def _advice(plan: Plan) -> Section | None:
    advice, largest = plan.advice, plan.largest
    if advice is None and largest is None:
        return None
    lines = () if largest is None else words.largest_lines(largest, plan.micro_batch_rows, plan.row_tokens)
    context = {"advice": advice, "words": words, "largest": largest, "lines": lines}
    return Section("planned_advice", "What to change", context=context, short="Advice")
