"""Energy and CO2e of a run: what its meters told, meter by meter and by phase.

By phase: between two readings a meter's energy is taken to flow evenly. Each span of the process, and each step of the
training loop (some neighbours together in a run of thousands, see ``thinning.py``), gets what flowed in it, and its
phases share that by their time. An evaluation that idles a GPU is so charged with less than the steps around it; a
forward and a backward of one step are told apart by their time alone. An estimate is shared out in the same way, and
stays marked as one. Phases are those of rank 0, energy that of all ranks, whose processes are taken to have started
together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hf_efficient.account.energy_gaps import energy_gaps
from hf_efficient.account.meter_curve import MeterCurve, once_each
from hf_efficient.account.nanoseconds import in_seconds
from hf_efficient.account.processes import Interval, ProcessSpans
from hf_efficient.account.steps import RankSteps
from hf_efficient.account.system import RankSystem
from hf_efficient.estimate.energy import co2e_grams
from hf_efficient.hardware.rates import Rates, grid_facts
from hf_efficient.records import PHASES, EnergyAccount, EnergyPart, NotMeasured, ProcessAccount

__all__ = ["energy_account"]


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
