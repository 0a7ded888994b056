"""The accelerators of a plan: a table, and time against money."""

from __future__ import annotations

from collections.abc import Callable

from hf_efficient.records.plan import Plan
from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.numbers import short_number
from hf_efficient.report.plots.frontier import time_against_money
from hf_efficient.units import short_seconds, usd

__all__ = ["planned_gpus_section"]

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
