"""One rank that all others wait for."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.ranks import SlowRank, slow_rank
from hf_efficient.diagnosis.rule import MATTERS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["straggler"]

_MOSTLY = 0.8
_UNEVEN = 1.1
_WHERE = {
    "data_wait": "its storage, its data loader's workers, and what else runs on its cores",
    "host_to_device": "its copies to the device: pinned memory, the PCIe link, other processes",
    "forward": "what else computes on its cores, their clocks, and what this rank does that the others do not",
    "forward_backward": "what else computes on its cores, their clocks, and what this rank does that others do not",
    "computation": "what it computes that the others do not, and whether it is given more tokens",
    "optimizer": "what else computes on its cores",
    "bookkeeping": "callbacks that work on this rank alone",
    "logging": "what is logged on this rank alone, and how often (train.logging_steps)",
}


def straggler(case: Case) -> Verdict:
    """The same rank is the last in most steps, and a twentieth of the loop or more is spent waiting for it.

    All ranks' steps are equally long, since they wait for each other in the backward; so those phases are held against
    each other in which a rank waits for nobody.
    """
    ranks = len(case.account.ranks)
    if ranks < 2 or case.first is None:
        return None
    found = slow_rank(case)
    if found is None:
        return abstains("straggler", f"fewer than five steps after warm-up are recorded of all {ranks} ranks")
    step_seconds = float(case.first.step_seconds[case.first.steady].mean())
    waited = found.extra_seconds / step_seconds * case.account.time.training_seconds
    if case.share(waited) < MATTERS or found.slowest_share < _MOSTLY:
        return None
    return Finding(
        rule="straggler",
        title=f"rank {found.rank} is the slowest of {ranks}: the others wait for its {_waited_for(found)}, "
        f"{share(case.share(waited))} of the loop",
        severity="warning",
        confidence="measured" if found.phase != "forward" else "likely",
        evidence=_evidence(found),
        cost=case.cost(waited),
        remedies=[_remedy(case, found, waited)],
        explains=["exposed_communication"],
    )


def _waited_for(found: SlowRank) -> str:
    return "computation" if found.phase == "computation" else _phase(found)


def _phase(found: SlowRank) -> str:
    if found.phase == "computation":
        return "CPU time"
    where = " on the device" if found.on_device else " on the host"
    return found.phase.replace("_", " ") + where


def _evidence(found: SlowRank) -> list[Evidence]:
    source = "steps.jsonl, steps.rankN.jsonl"
    name = _phase(found)
    evidence = [
        Evidence(f"{name} of a step, rank {rank}", value, "seconds", source)
        for rank, value in found.phase_seconds.items()
    ]
    if found.phase != "computation":
        evidence += _own(found, source)
    evidence.append(Evidence("steps in which it was the slowest", found.slowest_share, "share", source))
    evidence.append(Evidence("that a step takes longer for it", found.extra_seconds, "seconds", source))
    if found.tokens:
        evidence.append(Evidence(f"tokens of a step, rank {found.rank}", found.tokens[found.rank], "tokens", source))
        rest = [value for rank, value in found.tokens.items() if rank != found.rank]
        evidence.append(Evidence("tokens of a step, the others' mean", sum(rest) / len(rest), "tokens", source))
    return evidence


def _own(found: SlowRank, source: str) -> list[Evidence]:
    return [
        Evidence(f"time of its own of a step, rank {rank}", value, "seconds", source)
        for rank, value in found.own_seconds.items()
    ]


def _remedy(case: Case, found: SlowRank, waited: float) -> Remedy:
    basis = (
        f"rank {found.rank} as fast as the others: {short_seconds(found.extra_seconds)} less in each step; "
        "where its forward is slow, its backward is taken to be as far as it is longer than usual"
    )
    gain = case.gain(waited, basis)
    rest = [value for rank, value in found.tokens.items() if rank != found.rank]
    if rest and found.tokens[found.rank] > _UNEVEN * sum(rest) / len(rest):
        return Remedy("deal the tokens out evenly: this rank is given more of them", gain=gain)
    where = _WHERE[found.phase]
    if found.on_device:
        where = "its GPU's clocks, temperature and power limit, and other processes on it"
    return Remedy(f"look at rank {found.rank}: {where}", gain=gain)
