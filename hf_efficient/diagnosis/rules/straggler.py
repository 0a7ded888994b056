"""One rank that all others wait for."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rank_pauses import slow_in_pause
from hf_efficient.diagnosis.ranks import PAUSES, SlowRank, slow_rank
from hf_efficient.diagnosis.rule import MATTERS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy, Severity
from hf_efficient.units import share, short_seconds

__all__ = ["straggler"]

_MOSTLY = 0.8
_ALMOST_ALWAYS = 0.9
_WORTH_TELLING = 0.01
_UNEVEN = 1.1
_WHERE = {
    "data_wait": "its storage, its data loader's workers, and what else runs on its cores",
    "host_to_device": "its copies to the device: pinned memory, the PCIe link, other processes",
    "forward": "what else computes on its cores, their clocks, and what this rank does that the others do not",
    "backward": "what else computes on its cores, their clocks, and what this rank does that the others do not",
    "forward_backward": "what else computes on its cores, their clocks, and what this rank does that others do not",
    "computation": "what it computes that the others do not, and whether it is given more tokens",
    "device_wait": "its GPU's clocks, temperature and power limit, and other processes on it",
    "optimizer": "what else computes on its cores",
    "bookkeeping": "callbacks that work on this rank alone",
    "logging": "what is logged on this rank alone, and how often (train.logging_steps)",
    "checkpointing": "the disk that it saves to, what else writes there, and what this rank alone saves",
    "evaluation": "what else computes on its cores, and what this rank alone evaluates",
}


def straggler(case: Case) -> Verdict:
    """The same rank is the last in most steps, evaluations or saves; the others wait a twentieth of the loop for it.

    A rank that is the last in nearly all evaluations or saves is told of from a hundredth of the loop on, but for rank
    0, which writes what the others do not.

    All ranks' steps are equally long, since they wait for each other in the backward; so those phases are held against
    each other in which a rank waits for nobody.
    """
    ranks = len(case.account.ranks)
    if ranks < 2 or case.first is None:
        return None
    in_steps = slow_rank(case)
    if in_steps is None:
        return abstains("straggler", f"fewer than five steps after warm-up are recorded of all {ranks} ranks")
    pauses = [slow for name in PAUSES if (slow := slow_in_pause(case, name)) is not None]
    costs = [(_waited(case, one), one) for one in (in_steps, *pauses) if one.slowest_share >= _MOSTLY]
    waited, found = max(costs, key=lambda cost: cost[0], default=(0.0, in_steps))
    severity: Severity = "warning"
    if case.share(waited) < MATTERS:
        severity = "info"
        told = [(_waited(case, one), one) for one in pauses if one.rank and one.slowest_share >= _ALMOST_ALWAYS]
        waited, found = max(told, key=lambda cost: cost[0], default=(0.0, in_steps))
        if case.share(waited) < _WORTH_TELLING:
            return None
    return Finding(
        rule="straggler",
        title=f"rank {found.rank}{_place(case, found.rank)} is the slowest of {ranks}: the others wait for its "
        f"{_waited_for(found)}, {share(case.share(waited))} of the loop",
        severity=severity,
        confidence="likely" if found.backward_is_estimated else "measured",
        evidence=_evidence(case, found),
        cost=case.cost(waited),
        remedies=[_remedy(case, found, waited)],
        explains=["exposed_communication"],
    )


def _waited(case: Case, found: SlowRank) -> float:
    """Seconds of the run's loop that the others waited for it."""
    assert case.first is not None
    if found.pauses is not None:
        return found.extra_seconds * found.pauses * max(1.0, case.account.steps.count / len(case.first))
    step_seconds = float(case.first.step_seconds[case.first.steady].mean())
    return found.extra_seconds / step_seconds * case.account.time.training_seconds


def _place(case: Case, rank: int) -> str:
    """Its host and device, where they tell the ranks apart."""
    told = next((one for one in case.account.ranks if one.rank == rank), None)
    hosts = {one.host for one in case.account.ranks}
    parts = []
    if told is not None and told.host is not None and len(hosts) > 1:
        parts.append(told.host)
    if told is not None and told.device is not None and told.device != "cpu":
        parts.append(told.device)
    return f" ({', '.join(parts)})" if parts else ""


def _waited_for(found: SlowRank) -> str:
    return "computation" if found.phase == "computation" else _phase(found)


def _phase(found: SlowRank) -> str:
    if found.phase == "computation":
        return "CPU time"
    if found.pauses is not None:
        return "evaluations" if found.phase == "evaluation" else "saves"
    where = " on the device" if found.on_device else " on the host"
    return found.phase.replace("_", " ") + where


def _evidence(case: Case, found: SlowRank) -> list[Evidence]:
    source = "steps.jsonl, steps.rankN.jsonl"
    name = _phase(found)
    unit = "a step" if found.pauses is None else "one of them"
    evidence = [
        Evidence(
            f"{name} of a step, rank {rank}" if found.pauses is None else f"{name}, rank {rank}, each",
            value,
            "seconds",
            source,
        )
        for rank, value in found.phase_seconds.items()
    ]
    if found.phase != "computation" and found.pauses is None:
        evidence += _own(found, source)
    many = "steps" if found.pauses is None else f"of {found.pauses} {name}, those"
    evidence.append(Evidence(f"{many} in which it was the slowest", found.slowest_share, "share", source))
    evidence.append(Evidence(f"that {unit} takes longer for it", found.extra_seconds, "seconds", source))
    evidence.append(Evidence("the rank", found.rank, "count", source))
    evidence.append(Evidence("the phase", found.phase, "", source))
    evidence += _where_it_runs(case, found.rank)
    if found.tokens:
        evidence.append(Evidence(f"tokens of a step, rank {found.rank}", found.tokens[found.rank], "tokens", source))
        rest = [value for rank, value in found.tokens.items() if rank != found.rank]
        evidence.append(Evidence("tokens of a step, the others' mean", sum(rest) / len(rest), "tokens", source))
    return evidence


def _where_it_runs(case: Case, rank: int) -> list[Evidence]:
    told = next((one for one in case.account.ranks if one.rank == rank), None)
    places = [] if told is None else [("its host", told.host), ("its device", told.device)]
    source = f"spans.rank{rank}.jsonl" if rank else "spans.jsonl"
    return [Evidence(what, name, "", source) for what, name in places if name is not None]


def _own(found: SlowRank, source: str) -> list[Evidence]:
    return [
        Evidence(f"time of its own of a step, rank {rank}", value, "seconds", source)
        for rank, value in found.own_seconds.items()
    ]


def _remedy(case: Case, found: SlowRank, waited: float) -> Remedy:
    unit = {"evaluation": "evaluation", "checkpointing": "save"}.get(found.phase, "step")
    basis = f"rank {found.rank} as fast as the others: {short_seconds(found.extra_seconds)} less in each {unit}"
    if found.backward_is_estimated:
        basis += "; its backward is taken to be as slow as it is longer than usual"
    gain = case.gain(waited, basis)
    rest = [value for rank, value in found.tokens.items() if rank != found.rank]
    if rest and found.tokens[found.rank] > _UNEVEN * sum(rest) / len(rest):
        return Remedy("deal the tokens out evenly: this rank is given more of them", gain=gain)
    where = _WHERE[found.phase]
    if found.on_device:
        where = "its GPU's clocks, temperature and power limit, and other processes on it"
    return Remedy(f"look at rank {found.rank}: {where}", gain=gain)
