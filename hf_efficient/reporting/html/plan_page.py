"""The headline figures of a plan.

Memory of a plan: over the two simulated steps, by kind at the peak, and the largest tensors.

The data of a plan: how long the examples are, and what each kind of batch makes of them.

The accelerators of a plan: a table, and time against money.

What to change in a planned recipe, and the most that fits.

What a plan takes for granted, and what it does not know.

The page of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from hf_efficient.records.plan import Plan, PlannedGpu, PlannedOutcome, PlannedRanks
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.labels import category_color, category_label, phase_label, short_number
from hf_efficient.reporting.plan import (
    advice_title,
    data_sentence,
    grouped_notes,
    largest_lines,
    offload_figure,
    offloaded_label,
    override_lines,
    spot_saves,
    strategy_label,
)
from hf_efficient.reporting.plots.memory import planned_memory_over_steps, time_against_money
from hf_efficient.text import count, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd


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


def planned_memory_section(plan: Plan) -> Section:
    """The plot, a table with bars, the tensors, and the peak within each phase."""
    memory = plan.memory
    whole = memory.peak_allocated_bytes
    kinds = [
        {
            "label": category_label(name),
            "color": category_color(name),
            "size": size(held),
            "share": share(held / whole),
            "width": 100 * held / max(memory.categories.values()),
        }
        for name, held in sorted(memory.categories.items(), key=lambda item: -item[1])
        if held > 0
    ]
    tensors = [
        {
            "label": category_label(one.category),
            "color": category_color(one.category),
            "size": size(one.bytes),
            "shape": " x ".join(f"{length:,}" for length in one.shape),
            "dtype": one.dtype,
            "module": one.module,
        }
        for one in memory.largest
    ]
    phases = [(phase_label(name), size(value)) for name, value in memory.phase_peak_allocated_bytes.items()]
    context = {
        "kinds": kinds,
        "tensors": tensors,
        "phases": phases,
        "where": memory.peak_module,
        "paged": size(memory.paged_bytes) if memory.paged_bytes else "",
    }
    return Section("planned_memory", "Memory", [planned_memory_over_steps(memory)], context)


def planned_data_section(plan: Plan) -> Section | None:
    """None where the data were not read."""
    if plan.data is None:
        return None
    kinds = [
        {
            "name": one.name,
            "chosen": one.chosen,
            "positions": f"{one.epoch_positions:,}",
            "padding": share(one.padding_share),
            "steps": f"{one.epoch_steps:,}",
        }
        for one in plan.data.batchings
    ]
    return Section("planned_data", "Data", context={"sentence": data_sentence(plan.data), "kinds": kinds})


_GIB = 2**30


def planned_gpus_section(plan: Plan) -> Section | None:
    """None of a plan that was made for none."""
    if not plan.gpus:
        return None
    spot_alone = any(gpu.market == "spot" for gpu in plan.gpus)
    context = {
        "rows": [_row(gpu, plan.steps is not None) for gpu in plan.gpus],
        "whole": plan.steps is not None,
        "spot_alone": spot_alone,
        "spot_beside": not spot_alone and any(gpu.spot is not None for gpu in plan.gpus),
        "has_frontier": any(gpu.on_frontier for gpu in plan.gpus),
    }
    return Section("planned_gpus", "Accelerators", [time_against_money(plan)], context)


def _row(gpu: PlannedGpu, whole: bool) -> dict[str, object]:
    spot = gpu.spot
    hours, paid, kwh, grams = (
        (_scaled(gpu.run_seconds, 3600), gpu.run_usd, gpu.run_kwh, _scaled(gpu.run_co2e_grams, 1000))
        if whole
        else (None, gpu.usd_per_million_tokens, gpu.kwh_per_million_tokens, gpu.co2e_grams_per_million_tokens)
    )
    spot_usd = None if spot is None else spot.run_usd if whole else spot.usd_per_million_tokens
    return {
        "name": gpu.name,
        "fits": gpu.fits,
        "best": gpu.on_frontier,
        "needed": f"{gpu.needed_bytes / _GIB:.1f}",
        "memory": f"{gpu.usable_memory_bytes / _GIB:.1f}",
        "step": _or_nothing(gpu.step_seconds, short_seconds),
        "rate": _or_nothing(gpu.tokens_per_second, "{:,.0f}".format),
        "hourly": _or_nothing(gpu.price_usd_per_hour, usd),
        "source": gpu.price_source or "",
        "hours": _or_nothing(hours, short_number),
        "usd": _or_nothing(paid, usd),
        "spot": _or_nothing(spot_usd, usd),
        "spot_source": _spot_source(gpu),
        "kwh": _or_nothing(kwh, short_number),
        "co2e": _or_nothing(grams, short_number),
    }


def _spot_source(gpu: PlannedGpu) -> str:
    spot = gpu.spot
    if spot is None or spot.price_usd_per_hour is None:
        return ""
    every = f", saved every {spot.save_every_steps:,} steps" if spot.save_every_steps else ""
    return f"{usd(spot.price_usd_per_hour)} an hour from {spot.price_source}{every}"


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value / scale


def _or_nothing(value: float | None, form: Callable[[float], str]) -> str:
    return "n/a" if value is None else form(value)


def planned_advice_section(plan: Plan) -> Section | None:
    """None where neither was asked for."""
    advice, largest = plan.advice, plan.largest
    if advice is None and largest is None:
        return None
    rows: list[dict[str, Any]] = []
    if advice is not None:
        rows.append({"overrides": ["as it is"], **_figures(advice.before)})
        rows += [
            {
                "overrides": override_lines(change),
                "gives": change.gives,
                "costs": change.costs,
                "keeps": change.keeps_training,
                **_figures(change.after),
            }
            for change in advice.changes
        ]
    context = {
        "title": advice_title(advice) if advice is not None else "",
        "rows": rows,
        "left_out": advice.left_out if advice is not None else [],
        "helps": advice is not None and any(change.after.fits for change in advice.changes),
        "largest": largest_lines(largest, plan.micro_batch_rows, plan.row_tokens) if largest is not None else [],
        "largest_of": largest.accelerator if largest is not None else "",
    }
    return Section("planned_advice", "What to change", context=context, short="Advice")


def _figures(outcome: PlannedOutcome) -> dict[str, Any]:
    rate = outcome.tokens_per_second
    return {
        "needed": size(outcome.needed_bytes),
        "fits": outcome.fits,
        "step": "n/a" if outcome.step_seconds is None else short_seconds(outcome.step_seconds),
        "rate": "n/a" if rate is None else f"{rate:,.0f}",
    }


def planned_notes_section(plan: Plan) -> Section:
    """A list."""
    saves = spot_saves(plan.gpus, plan.steps)
    gaps = [f"{', '.join(names)}: {note}" for note, names in grouped_notes(plan.gpus).items()]
    context = {"assumptions": [*plan.assumptions, *([saves] if saves else [])], "gaps": gaps}
    return Section("planned_notes", "Taken for granted", context=context, short="Assumptions")


def plan_page(plan: Plan, command: str, written: datetime | None = None) -> str:
    """What a recipe needs, takes and costs before it runs.

    Args:
        plan: of the recipe.
        command: that makes the page again; told in the footer.
        written: when; told in the footer.
    """
    made = [
        planned_summary(plan),
        planned_memory_section(plan),
        planned_data_section(plan),
        planned_gpus_section(plan),
        planned_advice_section(plan),
        planned_notes_section(plan),
    ]
    return render(
        "plan.html.jinja",
        [section for section in made if section is not None],
        span=None,
        title=f"{plan.recipe}: plan · hf_efficient",
        kind="plan",
        command=command,
        written=written,
        plan=plan,
        fits=sum(gpu.fits for gpu in plan.gpus),
    )
