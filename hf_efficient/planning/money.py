"""What a planned run costs on an accelerator, on demand and spot, in money and energy."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hf_efficient.estimate import cost
from hf_efficient.estimate.sharding import ZERO
from hf_efficient.facts.prices import Market, SpotTerms, failure_hours, grid_intensity, offers, spot_terms
from hf_efficient.facts.tables import Accelerator
from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.simulation import Rank
from hf_efficient.recipe.schema import CostSection, Recipe
from hf_efficient.records.plan import PlannedGpu, PlannedMemory, PlannedSpot
from hf_efficient.text import seconds, size


@dataclass(frozen=True)
class Terms:
    """What the recipe says of money, and what its plan knows; ``spot``: with the facts where the recipe is silent.
    ``failures``: hours between two, and whose assumption that is. ``auto``: saves come by Daly's interval."""

    cost: CostSection
    spot: SpotTerms
    tokens: int
    checkpoint_bytes: int
    devices: int = 1
    saves: int | None = 0
    failures: tuple[float, str] = (math.inf, "")
    auto: bool = False

    def interval_seconds(self, step_seconds: float, steps: int | None) -> float | None:
        """Of work from one save to the next: where ``auto``, whole steps, nearest to Daly's interval; None: unknown."""
        if self.auto:
            every = max(1, round(cost.daly_interval(self.save_seconds, self.failures[0] * 3600) / step_seconds))
            return (every if steps is None else min(every, steps)) * step_seconds
        return steps * step_seconds / self.saves if steps and self.saves else None

    @property
    def save_seconds(self) -> float:
        return self.checkpoint_bytes / (self.spot.write_mb_per_second * 1e6)


def terms_of(
    recipe: Recipe, memory: PlannedMemory, tokens: int, rank: Rank | None = None, saves: int | None = 0
) -> Terms:
    """``rank``: whose memory that is, None of a process that trains alone."""
    saved = checkpoint_bytes(memory, recipe.adapter.method) if rank is None else _saved_by_all(rank, memory)
    stated = recipe.checkpoints.hours_between_failures
    return Terms(
        cost=recipe.cost,
        spot=spot_terms(**recipe.cost.spot.model_dump()),
        tokens=tokens,
        checkpoint_bytes=saved,
        devices=1 if rank is None else rank.sharding.ranks,
        saves=saves,
        failures=failure_hours(stated, recipe.cost.market, recipe.cost.spot.hours_between_preemptions),
        auto=recipe.train.get("save_steps") == "auto" and recipe.train.get("save_strategy", "steps") == "steps",
    )


def checkpoint_bytes(memory: PlannedMemory, method: str) -> int:
    """What a save writes, some kilobytes aside: the optimizer's state, trained weights (of a full fine-tune, all)."""
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
    """As expected (``estimate.cost``), saves after whole steps nearest to Daly's interval. Unknown steps: endless."""
    usd_per_hour, source = _price(device, terms, "spot")
    if usd_per_hour is None and terms.cost.market != "spot":
        return None
    between, save = terms.spot.hours_between_preemptions * 3600, terms.save_seconds
    found = PlannedSpot(usd_per_hour, source, terms.spot.hours_between_preemptions, terms.checkpoint_bytes, save)
    if gpu.step_seconds is None:
        return dataclasses.replace(found, reason="the time of a step is not known")
    every = max(1, round(cost.daly_interval(save, between) / gpu.step_seconds))
    interval = every * gpu.step_seconds
    work = interval if gpu.run_seconds is None else gpu.run_seconds
    run = cost.spot_run(work, save, between, restart_seconds=terms.spot.restart_seconds, interval_seconds=interval)
    if run.paid_seconds is None:
        return dataclasses.replace(found, reason=run.reason)
    usd = cost.cost_usd(gpu.step_seconds * run.paid_seconds / work, usd_per_hour)
    found = dataclasses.replace(
        found,
        save_every_steps=every,
        overhead_share=run.paid_seconds / work - 1,
        usd_per_million_tokens=cost.cost_per_million_tokens(usd, terms.tokens),
    )
    if gpu.run_seconds is None:
        return found
    run_usd = cost.cost_usd(run.paid_seconds, usd_per_hour)
    return dataclasses.replace(found, preemptions=run.preemptions, run_seconds=run.paid_seconds, run_usd=run_usd)


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
        interval = terms.interval_seconds(gpu.step_seconds, None) if terms.auto and gpu.step_seconds else None
        saving = (terms.saves if interval is None else math.ceil(gpu.run_seconds / interval)) * terms.save_seconds
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
    step, watts = gpu.step_seconds * (1 + lost), device.tdp_watts
    run = None if gpu.run_seconds is None else gpu.run_seconds * (1 + lost) + (saving or 0.0)
    step_joules, run_joules = (
        None if watts is None or one is None else cost.energy_from_tdp(watts, one, devices=terms.devices)
        for one in (step, run)
    )
    grid, each = grid_intensity(terms.cost.grid).grams_per_kwh, 1_000_000 / terms.tokens
    grams = cost.co2e_grams(step_joules, grid)
    return dataclasses.replace(
        found,
        usd_per_million_tokens=cost.cost_per_million_tokens(cost.cost_usd(step, usd), terms.tokens),
        run_seconds=run,
        run_usd=None if run is None else cost.cost_usd(run, usd),
        run_kwh=None if run_joules is None else cost.kilowatt_hours(run_joules),
        run_co2e_grams=cost.co2e_grams(run_joules, grid),
        kwh_per_million_tokens=None if step_joules is None else cost.kilowatt_hours(step_joules) * each,
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


def pause_remarks(recipe: Recipe, demand: Demand, terms: Terms, *, read: bool) -> Iterator[str]:
    """Of a run whose steps are known; without them there are no hours to hold anything."""
    if demand.steps is None:
        return
    if demand.evaluation_batches is None:
        yield (
            "hours and money hold no evaluations: how many there are, and of how many rows, is not known without the "
            "data; set train.eval_strategy=steps and data.max_eval_examples=N"
        )
    elif demand.evaluation_batches and not read:
        yield f"every evaluation has data.max_eval_examples rows, {recipe.data.max_eval_examples:,}, of as many tokens"
    if terms.cost.market == "spot":
        return
    if terms.saves is None:
        yield (
            "hours and money hold no saves of checkpoints: how many there are is not known without the data; "
            "set train.save_strategy=steps"
        )
    elif terms.saves > 0 and not terms.auto:
        most = "up to " if recipe.train.get("save_strategy") == "best" else ""
        many = f"{most}{terms.saves:,} save{'' if terms.saves == 1 else 's'} of {size(terms.checkpoint_bytes)}"
        speed, disk = f"{terms.spot.write_mb_per_second:g} MB/s", terms.spot.write_of
        change = f"{speed} ({disk}): cost.spot.write_mb_per_second changes that"
        yield f"hours and money hold {many}, written at {f'your {speed}' if disk is None else change}"


def loss_remarks(gpus: Sequence[PlannedGpu], terms: Terms, steps: int | None) -> list[str]:
    """What a failure undoes where the run fits, and what ``auto`` makes of it."""
    fitting = [gpu.step_seconds for gpu in gpus if gpu.fits and gpu.step_seconds]
    found = [(each, every) for each in fitting if (every := terms.interval_seconds(each, steps))]
    if not found:
        return []
    hours, of = terms.failures
    lost = _range([cost.seconds_undone(every, terms.save_seconds, hours * 3600) for _, every in found], seconds)
    after = _range([every / each for each, every in found], "{:,.0f}".format)
    auto = f"train.save_steps: auto saves after {after} steps; " if terms.auto else ""
    change = f", {of}: checkpoints.hours_between_failures changes that" if of else ""
    return [f"{auto}a failure undoes about {lost} (estimated, with one in {hours:g} h{change})"]


def _range(values: Sequence[float], form: Callable[[float], str]) -> str:
    return " to ".join(dict.fromkeys((form(min(values)), form(max(values)))))
