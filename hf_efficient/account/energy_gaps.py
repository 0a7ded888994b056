"""What the energy of a run leaves out, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hf_efficient.account.meter_curve import MeterCurve
from hf_efficient.account.system import RankSystem
from hf_efficient.records import EnergyPart, NotMeasured, ProcessAccount
from hf_efficient.units import seconds

__all__ = ["energy_gaps"]

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
