"""What a planned run costs on an accelerator, on demand and spot, in money and energy."""

import dataclasses
import math
from dataclasses import dataclass

from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd, daly_interval, spot_run
from hf_efficient.estimate.energy import co2e_grams, energy_from_tdp, kilowatt_hours
from hf_efficient.estimate.sharding import ZERO
from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.facts.energy import grid_intensity
from hf_efficient.facts.prices import Market, SpotTerms, offers, spot_terms
from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.simulation import Rank
from hf_efficient.recipe.schema import CostSection, Recipe
from hf_efficient.records.plan import PlannedGpu, PlannedMemory, PlannedSpot
from hf_efficient.text import size


@dataclass(frozen=True)
class Terms:
    """What the recipe says of money, and what its plan knows; ``spot``: with the facts where the recipe is silent."""

    cost: CostSection
    spot: SpotTerms
    tokens: int
    checkpoint_bytes: int
    devices: int = 1
    saves: int | None = 0

    @property
    def save_seconds(self) -> float:
        return self.checkpoint_bytes / (self.spot.write_mb_per_second * 1e6)


def terms_of(
    recipe: Recipe, memory: PlannedMemory, tokens: int, rank: Rank | None = None, saves: int | None = 0
) -> Terms:
    """``rank``: whose memory that is, None of a process that trains alone."""
    saved = checkpoint_bytes(memory, recipe.adapter.method) if rank is None else _saved_by_all(rank, memory)
    return Terms(
        cost=recipe.cost,
        spot=spot_terms(**recipe.cost.spot.model_dump()),
        tokens=tokens,
        checkpoint_bytes=saved,
        devices=1 if rank is None else rank.sharding.ranks,
        saves=saves,
    )


def checkpoint_bytes(memory: PlannedMemory, method: str) -> int:
    """What a save writes, some kilobytes aside: the optimizer's state and the trained (of a full fine-tune, all)
    weights."""
    held = memory.category_peak_bytes
    weights = memory.model_bytes if method == "full" else held.get("adapter", 0)
    return weights + held.get("optimizer_state", 0) + memory.paged_bytes


def _saved_by_all(rank: Rank, memory: PlannedMemory) -> int:
    """Bytes of what is trained and of the optimizer's state, paged included; of DDP every rank holds the whole."""
    states, sharding = rank.states, rank.sharding
    shares = sharding.ranks if sharding.strategy in (*ZERO, "fsdp2") else 1
    held = math.ceil(states.trained * (states.trained_bytes + states.optimizer_bytes + states.master_bytes))
    return held + memory.paged_bytes * shares


def _spot(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedSpot | None:
    """The run on such machines, in expectation (``estimate.cost``). Saves come after whole optimizer steps, nearest to
    Daly's interval; an unknown number of steps counts as endless."""
    usd_per_hour, source = _price(device, terms, "spot")
    if usd_per_hour is None and terms.cost.market != "spot":
        return None
    between, save = terms.spot.hours_between_preemptions * 3600, terms.save_seconds
    found = PlannedSpot(usd_per_hour, source, terms.spot.hours_between_preemptions, terms.checkpoint_bytes, save)
    if gpu.step_seconds is None:
        return dataclasses.replace(found, reason="the time of a step is not known")
    every = max(1, round(daly_interval(save, between) / gpu.step_seconds))
    interval = every * gpu.step_seconds
    work = interval if gpu.run_seconds is None else gpu.run_seconds
    run = spot_run(work, save, between, restart_seconds=terms.spot.restart_seconds, interval_seconds=interval)
    if run.paid_seconds is None:
        return dataclasses.replace(found, reason=run.reason)
    usd = cost_usd(gpu.step_seconds * run.paid_seconds / work, usd_per_hour)
    found = dataclasses.replace(
        found,
        save_every_steps=every,
        overhead_share=run.paid_seconds / work - 1,
        usd_per_million_tokens=cost_per_million_tokens(usd, terms.tokens),
    )
    if gpu.run_seconds is None:
        return found
    run_usd = cost_usd(run.paid_seconds, usd_per_hour)
    return dataclasses.replace(found, preemptions=run.preemptions, run_seconds=run.paid_seconds, run_usd=run_usd)


_MILLION = 1_000_000


def with_costs(gpu: PlannedGpu, device: Accelerator, terms: Terms) -> PlannedGpu:
    market, provider = terms.cost.market, terms.cost.price_from
    usd, source = _price(device, terms, market)
    notes = list(gpu.notes)
    if usd is None:
        kind = "spot price" if market == "spot" else "price"
        whose = "" if provider is None else f" from {provider}"
        notes.append(f"no {kind} of it{whose} is known: set cost.price_usd_per_hour to what you pay")
    spot = _spot(gpu, device, terms)
    lost = 0.0 if market == "on_demand" or spot is None else spot.overhead_share
    if lost is None and gpu.step_seconds is not None and spot is not None:
        notes.append(f"on spot machines it would hardly ever end: {spot.reason}")
    saving = None  # on the spot market it is in what is lost there, as often as costs least
    if gpu.run_seconds is not None and terms.saves is not None and market != "spot":
        saving = terms.saves * terms.save_seconds
    found = dataclasses.replace(
        gpu,
        notes=notes,
        market=market,
        price_usd_per_hour=usd,
        price_source=source,
        run_saving_seconds=saving,
        spot=spot,
    )
    if gpu.step_seconds is None or lost is None:
        return dataclasses.replace(found, run_seconds=None)
    run = None if gpu.run_seconds is None else gpu.run_seconds * (1 + lost) + (saving or 0.0)
    return _with_figures(found, gpu.step_seconds * (1 + lost), run, device.tdp_watts, terms)


def _with_figures(
    gpu: PlannedGpu, step_seconds: float, run_seconds: float | None, watts: float | None, terms: Terms
) -> PlannedGpu:
    step_joules = None if watts is None else energy_from_tdp(watts, step_seconds, devices=terms.devices)
    run_joules = None
    if watts is not None and run_seconds is not None:
        run_joules = energy_from_tdp(watts, run_seconds, devices=terms.devices)
    grid = grid_intensity(terms.cost.grid).grams_per_kwh
    grams = co2e_grams(step_joules, grid)
    each = _MILLION / terms.tokens
    return dataclasses.replace(
        gpu,
        usd_per_million_tokens=cost_per_million_tokens(cost_usd(step_seconds, gpu.price_usd_per_hour), terms.tokens),
        run_seconds=run_seconds,
        run_usd=None if run_seconds is None else cost_usd(run_seconds, gpu.price_usd_per_hour),
        run_kwh=None if run_joules is None else kilowatt_hours(run_joules),
        run_co2e_grams=co2e_grams(run_joules, grid),
        kwh_per_million_tokens=None if step_joules is None else kilowatt_hours(step_joules) * each,
        co2e_grams_per_million_tokens=None if grams is None else grams * each,
    )


def _price(device: Accelerator, terms: Terms, market: Market) -> tuple[float | None, str | None]:
    """The user's of all devices, which is of one market alone; else the cheapest list price, for each."""
    paid = terms.cost.price_usd_per_hour
    if paid is not None:
        return (paid, "cost.price_usd_per_hour") if market == terms.cost.market else (None, None)
    known = offers(device.name, market, terms.cost.price_from)
    offer = min(known, key=lambda one: one.usd_per_gpu_hour, default=None)
    return (None, None) if offer is None else (offer.usd_per_gpu_hour * terms.devices, offer.label)


def pause_remarks(recipe: Recipe, demand: Demand, terms: Terms, *, read: bool) -> list[str]:
    """Of a run whose steps are known; without them there are no hours to hold anything."""
    if demand.steps is None:
        return []
    remarks = [] if terms.cost.market == "spot" else _of_saves(recipe, terms)
    if demand.evaluation_batches is None:
        unknown = (
            "hours and money hold no evaluations: how many there are, and of how many rows, is not known without the "
            "data; set train.eval_strategy=steps and data.max_eval_examples=N"
        )
        return [unknown, *remarks]
    if read or not demand.evaluation_batches:
        return remarks
    rows = f"{recipe.data.max_eval_examples:,}"
    return [f"every evaluation has data.max_eval_examples rows, {rows}, of as many tokens", *remarks]


def _of_saves(recipe: Recipe, terms: Terms) -> list[str]:
    if terms.saves is None:
        return [
            "hours and money hold no saves of checkpoints: how many there are is not known without the data; "
            "set train.save_strategy=steps"
        ]
    if terms.saves == 0:
        return []
    most = "up to " if recipe.train.get("save_strategy") == "best" else ""
    many = f"{most}{terms.saves:,} save{'' if terms.saves == 1 else 's'} of {size(terms.checkpoint_bytes)}"
    speed, disk = f"{terms.spot.write_mb_per_second:g} MB/s", terms.spot.write_of
    if disk is None:
        return [f"hours and money hold {many}, written at your {speed}"]
    change = "cost.spot.write_mb_per_second changes that"
    return [f"hours and money hold {many}, written at {speed} ({disk}): {change}"]
