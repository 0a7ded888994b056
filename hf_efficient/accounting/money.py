"""What the energy of a run leaves out, and why.

Energy and CO2e of a run: what its meters told, meter by meter and by phase.

By phase: between two readings a meter's energy is taken to flow evenly. Each span of the process, and each step of the
training loop (some neighbours together in a run of thousands, see ``thinning.py``), gets what flowed in it, and its
phases share that by their time. An evaluation that idles a GPU is so charged with less than the steps around it; a
forward and a backward of one step are told apart by their time alone. An estimate is shared out in the same way, and
stays marked as one. Phases are those of rank 0, energy that of all ranks, whose processes are taken to have started
together.

What a run cost: the wall time of its processes at their price.

The limits of a run, and whether one of them ended it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from hf_efficient.accounting.processes import Interval, ProcessSpans
from hf_efficient.accounting.step_sums import in_seconds
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.accounting.system import MeterCurve, RankSystem, once_each
from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd, phase_costs
from hf_efficient.estimate.energy import co2e_grams
from hf_efficient.facts.prices import Rates, grid_facts
from hf_efficient.records.account import NotMeasured, ProcessAccount
from hf_efficient.records.amounts import BudgetAccount, EnergyAccount, EnergyPart, MoneyAccount
from hf_efficient.records.steps import PHASES
from hf_efficient.text import seconds

_WORTH_TELLING_SECONDS = 2.0
"""Samples are a second apart: a shorter gap at the end of a process that died says nothing."""


def energy_gaps(
    system: Sequence[RankSystem],
    metered: Sequence[MeterCurve],
    parts: Sequence[EnergyPart],
    accounts: Sequence[ProcessAccount],
) -> Iterator[NotMeasured]:
    """In the order: the whole, its start, the parts, the rest.

    Args:
        system: what the ranks sampled.
        metered: their meters, each once.
        parts: of the account.
        accounts: the processes of rank 0.
    """
    faults: dict[str, str] = {}
    for one in system:
        faults.update((name, why) for name, why in one.faults.items() if name not in faults)
    late = _late_seconds(metered, accounts)
    if not parts:
        yield NotMeasured("energy", "no meter was read")
    elif sum(late.values()) > _WORTH_TELLING_SECONDS:
        yield NotMeasured(
            f"energy of {seconds(sum(late.values()))} at the start",
            "meters are read from where the run knows its output directory",
        )
    unsampled = [account.wall_seconds for account in accounts if account.process not in late]
    if parts and sum(unsampled) > _WORTH_TELLING_SECONDS:
        starts = "one start" if len(unsampled) == 1 else f"{len(unsampled)} starts"
        yield NotMeasured(f"energy of {seconds(sum(unsampled))}", f"nothing was sampled in {starts} of the run")
    for part in parts:
        name = part.name.rpartition(": ")[2]
        if part.estimated:
            yield NotMeasured(f"measured energy of {part.name}", f"it is estimated: {part.note}")
        lost = part.missing_seconds - sum(late.values())
        if lost > _WORTH_TELLING_SECONDS:
            why = faults.get(name, "its readings end early, or leave a gap")
            yield NotMeasured(f"energy of {part.name} for {seconds(lost)}", why)
    told = {part.name.rpartition(": ")[2] for part in parts}
    for name, why in faults.items():
        if name not in told:
            yield NotMeasured(name if name.startswith(("memory", "load")) else f"energy of {name}", why)


def _late_seconds(metered: Sequence[MeterCurve], accounts: Sequence[ProcessAccount]) -> dict[int, float]:
    """By process: from where the run took it over to the first reading of any meter."""
    firsts: dict[int, float] = {}
    for one in metered:
        process = one.process
        firsts[process] = min(one.times[0], firsts.get(process, math.inf))
    return {
        account.process: firsts[account.process] - account.began_at_seconds
        for account in accounts
        if account.process in firsts
    }


def energy_account(
    system: Sequence[RankSystem],
    lived: Sequence[ProcessSpans],
    accounts: Sequence[ProcessAccount],
    first: RankSteps,
) -> tuple[EnergyAccount, list[NotMeasured]]:
    """The energy of a run, and what is missing of it.

    Args:
        system: what its ranks sampled, rank 0 first.
        lived: the processes of rank 0, as their spans tell them.
        accounts: the same, in the same order, with their time.
        first: the steps of rank 0.
    """
    metered = once_each(curve for one in system for curve in one.curves.values())
    parts = _parts(metered, accounts)
    joules = round(math.fsum(part.joules for part in parts), 6) if parts else None
    stated = next((one.facts["grid"] for one in reversed(lived) if "grid" in one.facts), grid_facts(Rates()))
    energy = EnergyAccount(
        joules=joules,
        estimated=any(part.estimated for part in parts),
        parts=parts,
        phase_joules=_by_phase(metered, lived, first) if parts else None,
        co2e_grams=co2e_grams(joules, stated["grams_per_kwh"]),
        grid_grams_per_kwh=stated["grams_per_kwh"],
        grid_source=stated["source"],
    )
    return energy, list(energy_gaps(system, metered, parts, accounts))


def _parts(metered: Sequence[MeterCurve], accounts: Sequence[ProcessAccount]) -> list[EnergyPart]:
    several = len({one.machine for one in metered}) > 1
    walls = {account.process: account.wall_seconds for account in accounts}
    groups: dict[tuple[str, str, str], list[MeterCurve]] = {}
    for one in metered:
        groups.setdefault((one.machine, one.name, one.source), []).append(one)
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
                source=group[-1].source,
                estimated=group[-1].source == "estimate",
                covered_seconds=round(known, 6),
                missing_seconds=round(max(0.0, wall - known), 6),
                note=group[0].note,
            )
        )
    return parts


def _by_phase(metered: Sequence[MeterCurve], lived: Sequence[ProcessSpans], first: RankSteps) -> dict[str, float]:
    shared: dict[str, list[float]] = {}
    for process in lived:
        curves = [one for one in metered if one.process == process.process]
        for start, end, phases in _intervals(process, first):
            flowed = math.fsum(curve.until(end) - curve.until(start) for curve in curves)
            length = max(end - start, math.fsum(phases.values()))
            for name, spent in phases.items() if length > 0 else ():
                shared.setdefault(name, []).append(flowed * spent / length)
    total = math.fsum(one.joules for one in metered)
    phases = {name: round(math.fsum(joules), 6) for name, joules in shared.items()}
    phases["unattributed"] = round(max(0.0, total - math.fsum(phases.values())), 6)
    names = [*(name for name in PHASES if name in phases), *(name for name in phases if name not in PHASES)]
    return {name: phases[name] for name in names if phases[name] or name == "unattributed"}


def _intervals(process: ProcessSpans, first: RankSteps) -> Iterator[Interval]:
    until = 0.0
    for interval in process.spans:
        until = max(until, interval[1])
        yield interval
    for segment in first.segments:
        called = process.trains.get(segment.segment)
        if called is not None:
            until = max(until, called + segment.last_ends_at_seconds)
            yield from _of_the_loop(first, segment.segment, called)
    alive = process.alive
    if alive is not None and alive["started_at_seconds"] >= until - 1e-6:
        yield alive["started_at_seconds"], alive["at_seconds"], alive["phase_seconds"]


def _of_the_loop(rank: RankSteps, segment: int, called: float) -> Iterator[Interval]:
    """A bucket holds one step; of a run with thousands, some neighbours."""
    for bucket in rank.buckets.buckets:
        if bucket.group == segment:
            start = called + bucket.started_at_seconds
            yield start, start + bucket.sums.wall_ns / 1e9, in_seconds(bucket.sums.phase_ns)


def money_account(
    lived: Sequence[ProcessSpans], accounts: Sequence[ProcessAccount], non_padding_tokens: int | None
) -> tuple[MoneyAccount, list[NotMeasured]]:
    """The cost of a run, and why it is not known where it is not.

    Each process is paid at the price that it stated, since a run may be resumed on another machine; one that died
    before it stated any, at that of the process after it, or before it.

    Args:
        lived: the processes of rank 0, as their spans tell them.
        accounts: the same, in the same order, with their time.
        non_padding_tokens: of all ranks; None where unknown.
    """
    stated = _stated(lived)
    last = stated[-1]
    if last is None:
        return MoneyAccount(), [NotMeasured("cost", "the records state no price")]
    unpriced = next((one for one in stated if one is not None and one["price_usd_per_hour"] is None), None)
    if unpriced is not None:
        return MoneyAccount(), [NotMeasured("cost", unpriced.get("reason", "no price is known"))]
    phases: dict[str, float] = {}
    for facts, account in zip(stated, accounts, strict=True):
        price = facts["price_usd_per_hour"] if facts is not None else None
        spent = {**account.phase_seconds, "unattributed": max(0.0, account.unattributed_seconds)}
        for name, usd in (phase_costs(spent, price) or {}).items():
            phases[name] = phases.get(name, 0.0) + usd
    prices = {facts["price_usd_per_hour"] for facts in stated if facts is not None}
    cost = cost_of_processes(lived, [account.wall_seconds for account in accounts])
    return MoneyAccount(
        cost_usd=cost,
        usd_per_million_non_padding_tokens=cost_per_million_tokens(cost, non_padding_tokens),
        phase_usd=phases,
        price_usd_per_hour=last["price_usd_per_hour"],
        price_source=last["source"],
        estimated=any(facts is not None and facts["estimated"] for facts in stated),
        lowest_price_usd_per_hour=min(prices) if len(prices) > 1 else None,
        highest_price_usd_per_hour=max(prices) if len(prices) > 1 else None,
    ), []


def cost_of_processes(lived: Sequence[ProcessSpans], wall_seconds: Sequence[float]) -> float | None:
    """The sum of what each process cost at the price that it stated; None where one of them states none.

    Args:
        lived: the processes of rank 0.
        wall_seconds: of each, in the same order.
    """
    costs = [
        cost_usd(seconds, None if facts is None else facts["price_usd_per_hour"])
        for facts, seconds in zip(_stated(lived), wall_seconds, strict=True)
    ]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None


def _stated(lived: Sequence[ProcessSpans]) -> list[dict[str, Any] | None]:
    """The price of each process; all None where none stated one."""
    own = [one.facts.get("price") for one in lived]
    filled = []
    for index in range(len(own)):
        nearest = [*own[index:], *reversed(own[:index])]
        filled.append(next((facts for facts in nearest if facts is not None), None))
    return filled


def budget_of(last: ProcessSpans) -> BudgetAccount | None:
    """The budget that a run's last process had; None where it had none."""
    limits = last.facts.get("budget")
    if limits is None:
        return None
    reached = (last.notes.get("budget") or [{}])[-1]
    return BudgetAccount(
        usd=limits.get("usd"),
        hours=limits.get("hours"),
        kwh=limits.get("kwh"),
        reached=reached.get("reached"),
        reached_at_step=reached.get("step"),
    )
