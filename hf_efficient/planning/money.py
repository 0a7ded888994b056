"""What a planned run costs on an accelerator, on demand and spot, in money and energy."""

from __future__ import annotations

import dataclasses

from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd
from hf_efficient.estimate.energy import co2e_grams, energy_from_tdp, kilowatt_hours
from hf_efficient.hardware.accelerators import Accelerator
from hf_efficient.hardware.prices import Market, offers
from hf_efficient.planning.spot import planned_spot
from hf_efficient.planning.terms import Terms
from hf_efficient.records.plan import PlannedGpu, PlannedSpot

__all__ = ["with_costs"]

_MILLION = 1_000_000


def with_costs(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedGpu:
    """The plan of an accelerator with its money and energy.

    Args:
        gpu: its memory and time.
        device: the accelerator.
        terms: of the run.
    """
    usd, source = _price(device, terms, terms.market)
    notes = list(gpu.notes)
    if usd is None:
        notes.append(_no_price(terms))
    spot = _spot(gpu, device, terms)
    step = gpu.step_seconds
    if terms.market == "spot" and step is not None and spot is not None:
        step = None if spot.overhead_share is None else step * (1 + spot.overhead_share)
        if spot.reason is not None:
            notes.append(f"on spot machines it would hardly ever end: {spot.reason}")
    found = dataclasses.replace(
        gpu, notes=notes, market=terms.market, price_usd_per_hour=usd, price_source=source, spot=spot
    )
    return found if step is None else _with_figures(found, step, device.tdp_watts, terms)


def _with_figures(gpu: PlannedGpu, step_seconds: float, watts: float | None, terms: Terms) -> PlannedGpu:
    """Those of a step, whatever is lost on the way included, and of all steps."""
    run = None if terms.steps is None else step_seconds * terms.steps
    per_million = _MILLION / terms.tokens
    step_joules = None if watts is None else energy_from_tdp(watts, step_seconds)
    run_joules = None if run is None or watts is None else energy_from_tdp(watts, run)
    grams = co2e_grams(step_joules, terms.grid_grams_per_kwh)
    return dataclasses.replace(
        gpu,
        usd_per_million_tokens=cost_per_million_tokens(cost_usd(step_seconds, gpu.price_usd_per_hour), terms.tokens),
        run_seconds=run,
        run_usd=None if run is None else cost_usd(run, gpu.price_usd_per_hour),
        run_kwh=None if run_joules is None else kilowatt_hours(run_joules),
        run_co2e_grams=co2e_grams(run_joules, terms.grid_grams_per_kwh),
        kwh_per_million_tokens=None if step_joules is None else kilowatt_hours(step_joules) * per_million,
        co2e_grams_per_million_tokens=None if grams is None else grams * per_million,
    )


def _spot(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedSpot | None:
    usd, source = _price(device, terms, "spot")
    if usd is None and terms.market != "spot":
        return None
    return planned_spot(gpu.step_seconds, usd, source, terms)


def _price(device: Accelerator, terms: Terms, market: Market) -> tuple[float | None, str | None]:
    """The user's, which is of one market alone; else the cheapest list price."""
    if terms.price_usd_per_hour is not None:
        return (terms.price_usd_per_hour, "efficiency.price_usd_per_hour") if market == terms.market else (None, None)
    known = offers(device.name, market, terms.provider)
    offer = min(known, key=lambda one: one.usd_per_gpu_hour, default=None)
    return (None, None) if offer is None else (offer.usd_per_gpu_hour, offer.told)


def _no_price(terms: Terms) -> str:
    kind = "spot price" if terms.market == "spot" else "price"
    whose = "" if terms.provider is None else f" from {terms.provider}"
    return f"no {kind} of it{whose} is known: set efficiency.price_usd_per_hour to what you pay"
