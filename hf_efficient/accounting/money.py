"""What a run used and cost: energy and CO2e by meter and by phase, money by phase, the limits of its budget.

A meter's energy is taken to flow evenly between two readings. Each span and each step gets what flowed in it, which its
phases share by their time. An idling evaluation is so charged with less; forward and backward differ by time alone.
Estimates stay marked. Phases are those of rank 0, energy that of all ranks, taken to have started together.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hf_efficient.accounting.run_records import ProcessSpans, RunReader, last_stated
from hf_efficient.accounting.steps import Column, RankSteps, SegmentSteps, StepColumns, column, table
from hf_efficient.accounting.system import MeterCurve, RankSystem, once_each
from hf_efficient.accounting.time import phase_order, segments_of, spans_of
from hf_efficient.errors import OutputError
from hf_efficient.estimate.cost import co2e_grams, cost_per_million_tokens, cost_usd
from hf_efficient.estimate.forecast import Earlier
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.facts.prices import Rates, grid_facts
from hf_efficient.records.account import ProcessAccount
from hf_efficient.records.amounts import BudgetAccount, EnergyAccount, EnergyPart, MoneyAccount
from hf_efficient.records.events import GridFacts, PriceFacts
from hf_efficient.text import seconds

logger = logging.getLogger(__name__)

Gap = tuple[str, str]
"""What is not measured, and why."""

_WORTH_NAMING_SECONDS = 2.0
"""Samples are a second apart: a shorter gap at the end of a process that died says nothing."""


def energy_account(
    system: Sequence[RankSystem], lived: Sequence[ProcessSpans], accounts: Sequence[ProcessAccount], first: RankSteps
) -> tuple[EnergyAccount, list[Gap]]:
    """The energy of a run, and what is missing of it; rank 0 comes first, processes and accounts are in one order."""
    metered = once_each(system)
    parts = _parts(metered, accounts)
    joules = round(math.fsum(part.joules for part in parts), 6) if parts else None
    grid = last_stated(lived, "grid", GridFacts) or GridFacts(**grid_facts(Rates()))
    energy = EnergyAccount(
        joules=joules,
        estimated=any(part.estimated for part in parts),
        parts=parts,
        phase_joules=_by_phase(metered, lived, first) if parts else None,
        co2e_grams=co2e_grams(joules, grid.grams_per_kwh),
        grid_grams_per_kwh=grid.grams_per_kwh,
        grid_source=grid.source,
    )
    return energy, list(_energy_gaps(system, metered, parts, accounts))


def _parts(metered: Sequence[MeterCurve], accounts: Sequence[ProcessAccount]) -> list[EnergyPart]:
    several = len({one.meter.machine for one in metered}) > 1
    walls = {account.process: account.wall_seconds for account in accounts}
    groups: dict[tuple[str, str, str], list[MeterCurve]] = {}
    for one in metered:
        groups.setdefault((one.meter.machine, one.name, one.meter.source), []).append(one)
    parts = []
    for (machine, name, _), group in sorted(groups.items()):
        covered: dict[int, float] = {}  # processes that share a part cover the same time
        for one in group:
            covered[one.process] = max(covered.get(one.process, 0.0), one.covered_seconds)
        wall = math.fsum(walls.get(process, seconds) for process, seconds in covered.items())
        known = math.fsum(covered.values())
        parts.append(
            EnergyPart(
                name=f"{machine}: {name}" if several else name,
                joules=round(math.fsum(one.joules for one in group), 6),
                source=group[-1].meter.source,
                estimated=group[-1].meter.source == "estimate",
                covered_seconds=round(known, 6),
                missing_seconds=round(max(0.0, wall - known), 6),
                note=group[0].meter.note,
            )
        )
    return parts


def _by_phase(metered: Sequence[MeterCurve], lived: Sequence[ProcessSpans], first: RankSteps) -> dict[str, float]:
    shared: Counter[str] = Counter()
    for process in lived:
        curves = [one for one in metered if one.process == process.process]
        for start, end, phases in _intervals(process, segments_of(process, first, lived), first.columns):
            flowed = sum((curve.until(end) - curve.until(start) for curve in curves), start=np.zeros(len(start)))
            length = np.maximum(end - start, sum(phases.values(), start=np.zeros(len(start))))
            each = np.divide(flowed, length, out=np.zeros(len(start)), where=length > 0)
            shared.update({name: math.fsum(each * spent) for name, spent in phases.items()})
    phases_joules = {name: round(joules, 6) for name, joules in shared.items()}
    total = math.fsum(one.joules for one in metered)
    rest = round(max(0.0, total - math.fsum(phases_joules.values())), 6)
    return phase_order({**{name: joules for name, joules in phases_joules.items() if joules}, "unattributed": rest})


def _intervals(
    process: ProcessSpans, segments: Sequence[SegmentSteps], steps: StepColumns
) -> Iterator[tuple[Column, Column, Mapping[str, Column]]]:
    spans = spans_of(process, segments)
    yield column([one[0] for one in spans]), column([one[1] for one in spans]), table([one[2] for one in spans])
    for segment in segments:
        own = steps[steps.segment == segment.segment]
        starts = process.called_at_seconds(segment.segment) + own.started_at_seconds
        yield starts, starts + own.wall_seconds, own.phase_seconds


def _energy_gaps(
    system: Sequence[RankSystem],
    metered: Sequence[MeterCurve],
    parts: Sequence[EnergyPart],
    accounts: Sequence[ProcessAccount],
) -> Iterator[Gap]:
    faults: dict[str, str] = {}
    for one in system:
        faults = one.faults | faults
    firsts: dict[int, float] = {}
    for curve in metered:
        firsts[curve.process] = min(float(curve.times[0]), firsts.get(curve.process, math.inf))
    late = sum(firsts[one.process] - one.began_at_seconds for one in accounts if one.process in firsts)
    if not parts:
        yield "energy", "no meter was read"
    elif late > _WORTH_NAMING_SECONDS:
        why = "meters are read from where the run knows its output directory"
        yield f"energy of {seconds(late)} at the start", why
    unsampled = [account.wall_seconds for account in accounts if account.process not in firsts]
    if parts and sum(unsampled) > _WORTH_NAMING_SECONDS:
        starts = "one start" if len(unsampled) == 1 else f"{len(unsampled)} starts"
        yield f"energy of {seconds(sum(unsampled))}", f"nothing was sampled in {starts} of the run"
    for part in parts:
        name = part.name.rpartition(": ")[2]
        if part.estimated:
            yield f"measured energy of {part.name}", f"it is estimated: {part.note}"
        lost = part.missing_seconds - late
        if lost > _WORTH_NAMING_SECONDS:
            why = faults.get(name, "its readings end early, or leave a gap")
            yield f"energy of {part.name} for {seconds(lost)}", why
    named = {part.name.rpartition(": ")[2] for part in parts}
    for name, why in faults.items():
        if name not in named:
            yield name if name.startswith(("memory", "load")) else f"energy of {name}", why


def money_account(
    lived: Sequence[ProcessSpans], accounts: Sequence[ProcessAccount], non_padding_tokens: int | None
) -> tuple[MoneyAccount, list[Gap]]:
    """The cost of a run, and why it is not known where it is not. A process that died before stating its price is paid
    at its successor's or predecessor's."""
    budget, stated = lived[-1].stated("budget", BudgetAccount), _prices(lived)
    if budget is not None:
        reached = (lived[-1].notes.get("budget") or [{}])[-1]
        budget = replace(budget, reached=reached.get("reached"), reached_at_step=reached.get("step"))
    unpriced = next((one for one in stated if one.price_usd_per_hour is None), None)
    if not stated or unpriced is not None:
        why = "the records state no price" if unpriced is None else unpriced.reason
        return MoneyAccount(budget=budget), [("cost", why)]
    phases: Counter[str] = Counter()
    for price, account in zip(stated, accounts, strict=True):
        spent = {**account.phase_seconds, "unattributed": max(0.0, account.unattributed_seconds)}
        phases.update({name: cost_usd(one, price.price_usd_per_hour) or 0.0 for name, one in spent.items()})
    prices = {one.price_usd_per_hour for one in stated if one.price_usd_per_hour is not None}
    cost = cost_of_processes(lived, [account.wall_seconds for account in accounts])
    return MoneyAccount(
        cost_usd=cost,
        usd_per_million_non_padding_tokens=cost_per_million_tokens(cost, non_padding_tokens),
        phase_usd=dict(phases),
        price_usd_per_hour=stated[-1].price_usd_per_hour,
        price_source=stated[-1].source,
        estimated=any(one.estimated for one in stated),
        lowest_price_usd_per_hour=min(prices) if len(prices) > 1 else None,
        highest_price_usd_per_hour=max(prices) if len(prices) > 1 else None,
        budget=budget,
    ), []


def cost_of_processes(lived: Sequence[ProcessSpans], wall_seconds: Sequence[float]) -> float | None:
    """The sum of what rank 0's processes cost at the prices that they stated; None where one of them states none."""
    stated = _prices(lived)
    costs = [cost_usd(wall, price.price_usd_per_hour) for price, wall in zip(stated, wall_seconds, strict=False)]
    return sum_if_known(costs)


def _prices(lived: Sequence[ProcessSpans]) -> list[PriceFacts]:
    """The price of each process; none where none of them stated one."""
    own = [one.stated("price", PriceFacts) for one in lived]
    nearest = ([*own[index:], *reversed(own[:index])] for index in range(len(own)))
    return [price for prices in nearest for price in [one for one in prices if one is not None][:1]]


def read_earlier(directory: Path) -> Earlier:
    """Read what earlier processes left: spans of rank 0, samples of all ranks; zeros if unreadable (logged)."""
    try:
        records = RunReader(directory, kinds=("spans", "system")).look()
    except (OSError, OutputError) as error:
        logger.warning("What this run has spent so far cannot be read (%s): it counts from now.", error)
        return Earlier()
    found, metered = records.processes, once_each(records.system)
    walls = [one.last_at_seconds - one.began_at_seconds for one in found]
    evaluations, saves = durations_of(found, "evaluation"), durations_of(found, "save")
    return Earlier(
        wall_seconds=math.fsum(walls),
        evaluations=len(evaluations),
        evaluation_seconds=math.fsum(evaluations),
        saves=len(saves),
        save_seconds=math.fsum(saves),
        joules=math.fsum(one.joules for one in metered) if metered or not found else None,
        cost_usd=cost_of_processes(found, walls) if found else None,
        failures=sum(one.died or (one.end is not None and one.end.ended == "error") for one in found),
    )


def durations_of(processes: Sequence[ProcessSpans], kind: str) -> list[float]:
    notes = (note.get("seconds") for one in processes for note in one.notes.get(kind, ()))
    return [float(seconds) for seconds in notes if isinstance(seconds, int | float)]
