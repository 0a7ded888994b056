"""What training on several ranks cost beside what each had to do: skew by phase, communication, waits for the late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.steps import RankSteps
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.records import AcrossRanks, MoneyAccount, NotMeasured, PhaseSkew, RankAccount

__all__ = ["across_gaps", "across_ranks"]

_ALONE = ("data_wait", "host_to_device", "forward", "forward_backward", "bookkeeping", "logging")
"""Phases in which a rank waits for no other, or hardly."""
_APART = (*_ALONE, "backward", "optimizer", "evaluation", "checkpointing")
"""The same where every wait for others was told apart."""
_ON_DEVICE = ("forward", "backward", "optimizer")


def across_ranks(
    accounts: Sequence[RankAccount],
    ranks: Sequence[RankSteps],
    money: MoneyAccount,
    lived: Mapping[int, Sequence[ProcessSpans]] | None = None,
) -> AcrossRanks | None:
    """None of fewer than two ranks.

    Times are sums over each rank's training loop. What the ranks spent in communication differs by how long they waited
    for those that came later; the least of it is the exchange itself, as far as nothing covers it.

    Args:
        accounts: of each rank.
        ranks: their steps, in the same order.
        money: tells the price.
        lived: by rank, its processes, whose facts tell what DDP logged.
    """
    if len(accounts) < 2:
        return None
    exposed, late, by = _communication(accounts)
    hosts = {one.host for one in accounts}
    return AcrossRanks(
        ranks=len(accounts),
        hosts=None if None in hosts else len(hosts),
        skew=_skew(accounts, _own_seconds(accounts, ranks), money.price_usd_per_hour),
        exposed_seconds=exposed,
        late_seconds=late,
        exposed_by=by,
        exposed_usd=_usd(exposed, money),
        late_usd=_usd(late, money),
        covered_seconds=_covered(accounts, lived or {}),
    )


def across_gaps(across: AcrossRanks | None) -> list[NotMeasured]:
    """What is not known of several ranks, and why."""
    if across is None:
        return []
    if across.exposed_by is None:
        why = "it goes on inside other phases, `backward` above all"
        return [NotMeasured("communication between the ranks, by itself", why)]
    if across.covered_seconds is not None:
        return []
    why = "what is told is waited for; a trace tells the rest: efficiency.profile.trace"
    return [NotMeasured("communication that computation covers", why)]


def _communication(
    accounts: Sequence[RankAccount],
) -> tuple[float | None, float | None, Literal["device", "host"] | None]:
    """Exposed, late, and what told it."""
    on_device = [(one.device_seconds or {}).get("communication") for one in accounts]
    on_host = [None if one.device_seconds else one.waited_seconds for one in accounts]
    for told, by in ((on_device, "device"), (on_host, "host")):
        known = [value for value in told if value is not None]
        if len(known) == len(accounts):
            least = min(known)
            return least, sum(known) / len(known) - least, by  # type: ignore[return-value]
    return None, None, None


def _covered(accounts: Sequence[RankAccount], lived: Mapping[int, Sequence[ProcessSpans]]) -> float | None:
    """Of the rank whose exchange took the shortest: the others' holds what they waited for it.

    DDP logs means over a part of the steps; they are taken for those of all.
    """
    found = []
    for one in accounts:
        logs = [process.facts["exchange"] for process in lived.get(one.rank, ()) if process.facts.get("exchange")]
        if logs:
            found.append((float(logs[-1]["seconds"]), float(logs[-1]["covered_seconds"]) * one.steps))
    return min(found)[1] if found else None


def _own_seconds(
    accounts: Sequence[RankAccount], ranks: Sequence[RankSteps]
) -> dict[tuple[str, bool], dict[int, float]]:
    """By phase and whether the device told it, then by rank: time in which it waits for no other."""
    timed = all(one.device_seconds for one in accounts)
    apart = all("communication" in ((one.device_seconds if timed else one.phase_seconds) or {}) for one in accounts)
    found: dict[tuple[str, bool], dict[int, float]] = {}
    for one, steps in zip(accounts, ranks, strict=True):
        host = _without_waits(one.phase_seconds or {}, steps)
        names = [name for name in (_APART if apart else _ALONE) if not (timed and name in _ON_DEVICE)]
        for name in names:
            if name in host:
                found.setdefault((name, False), {})[one.rank] = host[name]
        for name in (_ON_DEVICE if apart else ("forward",)) if timed else ():
            found.setdefault((name, True), {})[one.rank] = (one.device_seconds or {}).get(name, 0.0)
    return found


def _without_waits(phases: Mapping[str, float], steps: RankSteps) -> dict[str, float]:
    waited: dict[str, int] = {}
    for segment in steps.segments:
        for name, nanoseconds in segment.waited_ns.items():
            waited[name] = waited.get(name, 0) + nanoseconds
    return {name: seconds - waited.get(name, 0) / 1e9 for name, seconds in phases.items()}


def _skew(
    accounts: Sequence[RankAccount],
    own: Mapping[tuple[str, bool], Mapping[int, float]],
    price_usd_per_hour: float | None,
) -> list[PhaseSkew]:
    by_rank = {one.rank: one for one in accounts}
    found = []
    for (phase, on_device), seconds in own.items():
        held = {rank: seconds.get(rank, 0.0) for rank in by_rank}
        slow = max(held, key=lambda rank: held[rank])
        extra = held[slow] - median(value for rank, value in held.items() if rank != slow)
        account = by_rank[slow]
        usd = cost_usd(extra, price_usd_per_hour)
        found.append(PhaseSkew(phase, slow, account.host, account.device, held[slow], extra, usd, on_device))
    return sorted(found, key=lambda one: -one.extra_seconds)


def _usd(seconds: float | None, money: MoneyAccount) -> float | None:
    return None if seconds is None else cost_usd(seconds, money.price_usd_per_hour)
