"""What a planned run costs on an accelerator, on demand and spot, in money and energy."""

from __future__ import annotations

import dataclasses

from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd
from hf_efficient.estimate.energy import co2e_grams, energy_from_tdp, kilowatt_hours
from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.facts.prices import Market, offers
from hf_efficient.planning.spot import planned_spot
from hf_efficient.planning.terms import Terms
from hf_efficient.records.plan import PlannedGpu, PlannedSpot

_MILLION = 1_000_000


def with_costs(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedGpu:
    """The plan of an accelerator with its money and energy.

    Args:
        gpu: its memory and time, without saves.
        device: the accelerator.
        terms: of the run.
    """
    usd, source = _price(device, terms, terms.market)
    notes = list(gpu.notes)
    if usd is None:
        notes.append(_no_price(terms))
    spot = _spot(gpu, device, terms)
    lost = 0.0 if terms.market == "on_demand" or spot is None else spot.overhead_share
    if lost is None and gpu.step_seconds is not None and spot is not None:
        notes.append(f"on spot machines it would hardly ever end: {spot.reason}")
    found = dataclasses.replace(
        gpu,
        notes=notes,
        market=terms.market,
        price_usd_per_hour=usd,
        price_source=source,
        run_saving_seconds=_saving(gpu, terms),
        spot=spot,
    )
    if gpu.step_seconds is None or lost is None:
        return dataclasses.replace(found, run_seconds=None)
    run = None if gpu.run_seconds is None else gpu.run_seconds * (1 + lost) + (found.run_saving_seconds or 0.0)
    return _with_figures(found, gpu.step_seconds * (1 + lost), run, device.tdp_watts, terms)


def _with_figures(
    gpu: PlannedGpu, step_seconds: float, run_seconds: float | None, watts: float | None, terms: Terms
) -> PlannedGpu:
    """Those of a step and of the run, whatever is lost on the way included."""
    step_joules = None if watts is None else energy_from_tdp(watts, step_seconds, devices=terms.devices)
    run_joules = None
    if watts is not None and run_seconds is not None:
        run_joules = energy_from_tdp(watts, run_seconds, devices=terms.devices)
    grams = co2e_grams(step_joules, terms.grid_grams_per_kwh)
    each = _MILLION / terms.tokens
    return dataclasses.replace(
        gpu,
        usd_per_million_tokens=cost_per_million_tokens(cost_usd(step_seconds, gpu.price_usd_per_hour), terms.tokens),
        run_seconds=run_seconds,
        run_usd=None if run_seconds is None else cost_usd(run_seconds, gpu.price_usd_per_hour),
        run_kwh=None if run_joules is None else kilowatt_hours(run_joules),
        run_co2e_grams=co2e_grams(run_joules, terms.grid_grams_per_kwh),
        kwh_per_million_tokens=None if step_joules is None else kilowatt_hours(step_joules) * each,
        co2e_grams_per_million_tokens=None if grams is None else grams * each,
    )


def _saving(gpu: PlannedGpu, terms: Terms) -> float | None:
    """All saves of the run; those of the spot market are in what is lost there, as often as costs least."""
    if gpu.run_seconds is None or terms.saves is None or terms.market == "spot":
        return None
    return terms.saves * terms.save_seconds


def _spot(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedSpot | None:
    usd, source = _price(device, terms, "spot")
    if usd is None and terms.market != "spot":
        return None
    return planned_spot(gpu, usd, source, terms)


def _price(device: Accelerator, terms: Terms, market: Market) -> tuple[float | None, str | None]:
    """The user's of all devices, which is of one market alone; else the cheapest list price, for each."""
    if terms.price_usd_per_hour is not None:
        return (terms.price_usd_per_hour, "efficiency.price_usd_per_hour") if market == terms.market else (None, None)
    known = offers(device.name, market, terms.provider)
    offer = min(known, key=lambda one: one.usd_per_gpu_hour, default=None)
    return (None, None) if offer is None else (offer.usd_per_gpu_hour * terms.devices, offer.told)


def _no_price(terms: Terms) -> str:
    kind = "spot price" if terms.market == "spot" else "price"
    whose = "" if terms.provider is None else f" from {terms.provider}"
    return f"no {kind} of it{whose} is known: set efficiency.price_usd_per_hour to what you pay"
