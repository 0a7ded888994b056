"""Each rank by itself, and what training on several cost: skew by phase, communication, waits for the late."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from hf_efficient.accounting.run_records import ProcessSpans, last_stated
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.accounting.time import in_seconds
from hf_efficient.accounting.work import counted_categories, peaks_of
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.records.account import AcrossRanks, PhaseSkew, RankAccount
from hf_efficient.records.amounts import MoneyAccount
from hf_efficient.records.events import ExchangeFacts, SettingsFacts

ALONE = ("data_wait", "host_to_device", "forward", "forward_backward", "bookkeeping", "logging")
"""Phases in which a rank waits for no other, or hardly. Where gradients are averaged, in the backward, all wait for the
last."""
_APART = (*ALONE, "backward", "optimizer", "evaluation", "checkpointing")
"""The same where every wait for others was separated."""
_ON_DEVICE = ("forward", "backward", "optimizer")


def rank_account(rank: RankSteps, lived: Sequence[ProcessSpans]) -> RankAccount:
    """One rank; one that left no spans is known by its steps alone."""
    host, device, waited = rank.total("phase_ns"), rank.total("device_ns"), rank.total("waited_ns")
    is_known = not device and ("communication" in host or bool(waited))  # beside a device the host hardly waits
    names = (one.facts.get("system", {}).get("hostname") for one in reversed(lived))  # a run may be resumed elsewhere
    on = (last_stated(lived, "settings", SettingsFacts) or SettingsFacts()).device
    named, index = on.get("name") or on.get("type"), on.get("index")
    return RankAccount(
        rank=rank.rank,
        steps=rank.steps,
        last_step=rank.segments[-1].last_step if rank.segments else None,
        training_seconds=round(rank.training_seconds, 9),
        host=next((str(name) for name in names if name), None),
        device=f"{named}{'' if index is None else f' {index}'}" if named else None,
        phase_seconds=in_seconds(host) or None,
        waited_seconds=(host["communication"] + waited.total()) / 1e9 if is_known else None,
        device_seconds=in_seconds(device) or None,
        **peaks_of(lived),
        memory_categories=counted_categories(lived),
    )


def across_ranks(
    accounts: Sequence[RankAccount],
    ranks: Sequence[RankSteps],
    money: MoneyAccount,
    lived: Mapping[int, Sequence[ProcessSpans]],
) -> AcrossRanks | None:
    """None of fewer than two ranks. Times are sums over each rank's training loop. The least communication of a rank is
    the exchange itself, as far as nothing covers it; more is a wait for later ranks. ``lived`` has, by rank, what DDP
    logged."""
    if len(accounts) < 2:
        return None
    on_device = [(one.device_seconds or {}).get("communication") for one in accounts]
    on_host = [None if one.device_seconds else one.waited_seconds for one in accounts]
    waited = on_host if None in on_device else on_device
    known = [] if None in waited else [seconds for seconds in waited if seconds is not None]
    exposed = min(known, default=None)
    late = None if exposed is None else sum(known) / len(known) - exposed
    by: Literal["device", "host"] = "host" if None in on_device else "device"
    hosts, price = {one.host for one in accounts}, money.price_usd_per_hour
    return AcrossRanks(
        ranks=len(accounts),
        hosts=None if None in hosts else len(hosts),
        skew=_skew(accounts, _own_seconds(accounts, ranks), price),
        exposed_seconds=exposed,
        late_seconds=late,
        exposed_by=by if known else None,
        exposed_usd=None if exposed is None else cost_usd(exposed, price),
        late_usd=None if late is None else cost_usd(late, price),
        covered_seconds=_covered(accounts, lived),
    )


def _covered(accounts: Sequence[RankAccount], lived: Mapping[int, Sequence[ProcessSpans]]) -> float | None:
    """Of the rank with the shortest exchange, as others' hold waits; DDP's means over some steps stand for all."""
    logged = [(last_stated(lived.get(one.rank, ()), "exchange", ExchangeFacts), one.steps) for one in accounts]
    found = [(facts.seconds, facts.covered_seconds * steps) for facts, steps in logged if facts is not None]
    return min(found)[1] if found else None


def _own_seconds(
    accounts: Sequence[RankAccount], ranks: Sequence[RankSteps]
) -> dict[tuple[str, bool], dict[int, float]]:
    """By phase and whether the device measured it, then by rank: time in which it waits for no other."""
    timed = all(one.device_seconds for one in accounts)
    apart = all("communication" in ((one.device_seconds if timed else one.phase_seconds) or {}) for one in accounts)
    found: dict[tuple[str, bool], dict[int, float]] = {}
    for one, steps in zip(accounts, ranks, strict=True):
        waited = in_seconds(steps.total("waited_ns"))
        host = {name: spent - waited.get(name, 0.0) for name, spent in (one.phase_seconds or {}).items()}
        for name in _APART if apart else ALONE:
            if name in host and not (timed and name in _ON_DEVICE):
                found.setdefault((name, False), {})[one.rank] = host[name]
        for name in (_ON_DEVICE if apart else ("forward",)) if timed else ():
            found.setdefault((name, True), {})[one.rank] = (one.device_seconds or {}).get(name, 0.0)
    return found


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
