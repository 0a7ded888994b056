"""The page of a plan."""

import math
from datetime import datetime

from hf_efficient.records.plan import Plan, PlannedGpu
from hf_efficient.reporting import plan as words
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.plots.memory import planned_memory_over_steps, time_against_money
from hf_efficient.text import count, counted, flops, size, usd


def plan_page(plan: Plan, command: str, written: datetime | None = None) -> str:
    notes = {"assumptions": words.taken_for_granted(plan), "gaps": words.unknown_of(plan.gpus)}
    memory = plan.memory
    kinds = sorted(((name, held) for name, held in memory.categories.items() if held), key=lambda one: -one[1])
    at_peak = {"kinds": kinds, "memory": memory}
    answer = words.answer(plan) if plan.gpus else ""
    sections = [
        Section("summary", "In short", context={"tiles": planned_tiles(plan), "answer": answer}),
        Section("planned_memory", "Memory", [planned_memory_over_steps(memory)], at_peak),
        None if plan.data is None else Section("planned_data", "Data", context={"data": plan.data, "words": words}),
        _gpus(plan),
        _advice(plan),
        Section("planned_notes", "Taken for granted", context=notes, short="Assumptions"),
    ]
    return render(
        "plan",
        sections,
        title=f"{plan.recipe}: plan · hf_efficient",
        kind="plan",
        command=command,
        written=written,
        plan=plan,
        fits=sum(gpu.fits for gpu in plan.gpus),
    )


def planned_tiles(plan: Plan) -> list[Tile]:
    bound = "" if plan.data is None else "at most: "
    shape = f"{bound}{words.step_words(plan)}, {flops(plan.flops_per_step)}FLOP"
    trained = f"of {count(plan.parameters)} ({plan.adapter})"
    peak = f"in the {words.peak_phase(plan.memory, 'of later steps')}"
    ranks, machines = plan.ranks, []
    if ranks is not None:
        machines = [Tile("GPUs", f"{ranks.count}", f"{words.strategy_label(ranks.strategy)}, memory is that of each")]
    if ranks is not None and ranks.offloaded:
        machines.append(Tile(*words.offload_figure(ranks), f"{words.offloaded_label(ranks.offloaded)} of all"))
    return [
        Tile("Peak allocated", size(plan.memory.peak_allocated_bytes), peak),
        Tile("Tokens in a step", f"{math.prod(plan.step_rows):,}", shape),
        Tile("Trained parameters", count(plan.trained_parameters), trained),
        *machines,
    ]


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
    every = f", saved every {counted(spot.save_every_steps, 'step')}" if spot.save_every_steps else ""
    return f"{usd(spot.price_usd_per_hour)} an hour from {spot.price_source}{every}"


def _advice(plan: Plan) -> Section | None:
    advice, largest = plan.advice, plan.largest
    if advice is None and largest is None:
        return None
    lines = () if largest is None else words.largest_lines(largest, plan.micro_batch_rows, plan.row_tokens)
    context = {"advice": advice, "words": words, "largest": largest, "lines": lines}
    return Section("planned_advice", "What to change", context=context, short="Advice")
