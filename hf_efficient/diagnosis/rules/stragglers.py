"""One rank that all others wait for: ranks that train together, held against each other."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from hf_efficient.accounting.ranks import ALONE
from hf_efficient.accounting.steps import Column, StepColumns
from hf_efficient.diagnosis.case import MATTERS, Case, Row, Verdict, abstains, finding, rule
from hf_efficient.facts.tables import key_table
from hf_efficient.records.findings import Remedy, Severity
from hf_efficient.text import share, short_seconds

_PAUSES = {"evaluation": "evaluation", "checkpointing": "save"}
"""Phases that not every step has, and what each of them is called."""
_WAITS_APART = (*ALONE, "backward", "device_wait", "optimizer")
"""Phases in which a rank waits for no other where every wait for others is a phase of its own, ``communication``."""
_FEWEST_STEPS = 5
_STANDS_OUT = 0.15
_WHERE: dict[str, str] = key_table("diagnosis_words")["slow_rank"]

Held = Mapping[int, StepColumns]
Rows = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class SlowRank:
    """The rank with the most time of its own, over the steps after warm-up that all ranks recorded.

    Attributes:
        phase: in which it differs most; ``computation`` where CPU time shows it. ``phase_seconds``: its medians.
        extra_seconds: of a step or a pause, beyond the others' median; ``_backward_extra`` where waits are not apart.
        slowest_share: of the steps in which it was the one with the most.
        tokens: by rank, the mean positions of a step; empty where they are not known.
        pauses: how often an evaluation or a save occurred.
    """

    rank: int
    phase: str
    phase_seconds: Mapping[int, float]
    extra_seconds: float
    slowest_share: float
    tokens: Mapping[int, float] = field(default_factory=dict)
    on_device: bool = False
    backward_is_estimated: bool = False
    pauses: int | None = None

    @property
    def unit(self) -> str:
        return _PAUSES.get(self.phase, "step")

    @property
    def phase_name(self) -> str:
        if self.phase == "computation":
            return "CPU time"
        if self.pauses is not None:
            return f"{self.unit}s"
        return f"{self.phase.replace('_', ' ')} on the {'device' if self.on_device else 'host'}"

    @property
    def others_tokens(self) -> float | None:
        rest = [value for rank, value in self.tokens.items() if rank != self.rank]
        return sum(rest) / len(rest) if rest else None


@rule(needs_steps=False)
def straggler(case: Case) -> Verdict:
    """The same rank is the last in most steps, evaluations or saves; the others wait a twentieth of the loop for it.
    Since all ranks wait for each other in the backward, only phases in which a rank waits for nobody are compared. The
    last in nearly all evaluations or saves counts from a hundredth of the loop, but for rank 0, which writes."""
    ranks = case.ranks
    if ranks < 2 or not case.has_steps:
        return None
    held = {rank: columns for rank, columns in sorted(case.steps.items()) if len(columns)}
    in_steps = _slow_in_steps(case, held)
    if in_steps is None:
        return abstains(f"fewer than five steps after warm-up are recorded of all {ranks} ranks")
    pauses = [slow for phase in _PAUSES if (slow := _slow_in_pause(held, phase)) is not None]
    costs = [(_waited(case, one), one) for one in (in_steps, *pauses) if one.slowest_share >= 0.8]
    waited, found = max(costs, key=lambda cost: cost[0], default=(0.0, in_steps))
    severity: Severity = "warning"
    if case.share(waited) < MATTERS:
        severity = "info"
        late = [(_waited(case, one), one) for one in pauses if one.rank and one.slowest_share >= 0.9]
        waited, found = max(late, key=lambda cost: cost[0], default=(0.0, in_steps))
        if case.share(waited) < 0.01:
            return None
    waited_for = "computation" if found.phase == "computation" else found.phase_name
    account = next(one for one in case.account.ranks if one.rank == found.rank)
    host = account.host if len({one.host for one in case.account.ranks}) > 1 else None
    basis = f"rank {found.rank} as fast as the others: {short_seconds(found.extra_seconds)} less in each {found.unit}"
    if found.backward_is_estimated:
        basis += "; its backward is taken to be as slow as it is longer than usual"
    what = f"look at rank {found.rank}: {_WHERE['device_wait' if found.on_device else found.phase]}"
    if found.others_tokens is not None and found.tokens[found.rank] > 1.1 * found.others_tokens:
        what = "deal the tokens out evenly: this rank is given more of them"
    place = ", ".join(part for part in (host, account.device) if part and part != "cpu")
    return finding(
        f"rank {found.rank}{f' ({place})' if place else ''} is the slowest of {ranks}: the others wait for its "
        f"{waited_for}, {share(case.share(waited))} of the loop",
        _evidence(found),
        [Remedy(what, gain=case.gain(waited, basis))],
        case.cost(waited),
        severity=severity,
        confidence="likely" if found.backward_is_estimated else "measured",
        explains=["exposed_communication"],
    )


def _waited(case: Case, found: SlowRank) -> float:
    if found.pauses is not None:
        return found.extra_seconds * found.pauses * case.unseen
    step_seconds = float(case.first.step_seconds[case.first.steady].mean())
    return found.extra_seconds / step_seconds * case.account.time.training_seconds


def _evidence(found: SlowRank) -> list[Row]:
    source, name = "steps.jsonl, steps.rankN.jsonl", found.phase_name
    each = f"{name} of a step" if found.pauses is None else f"each of its {name}"
    many = "steps" if found.pauses is None else f"of {found.pauses} {name}, those"
    return [
        *((f"{each}, rank {rank}", value, "seconds", source) for rank, value in found.phase_seconds.items()),
        (f"{many} in which it was the slowest", found.slowest_share, "share", source),
        (f"that a {found.unit} takes longer for it", found.extra_seconds, "seconds", source),
        ("the rank", found.rank, "count", source),
        ("the phase", found.phase, "", source),
        (f"tokens of a step, rank {found.rank}", found.tokens.get(found.rank), "tokens", source),
        ("tokens of a step, the others' mean", found.others_tokens, "tokens", source),
    ]


def _slow_in_steps(case: Case, held: Held) -> SlowRank | None:
    if len(held) < 2:
        return None
    rows = _common_rows({rank: columns.steady for rank, columns in held.items()}, held)
    if len(next(iter(rows.values()))) < _FEWEST_STEPS:
        return None
    found = _by_phases(case, held, rows)
    busier = None if case.on_cuda else _busier(case, held, rows)
    if busier is not None:  # phases that show the same rank, and most of what CPU time shows, name the phase as well
        mostly_seen = 0.5 if busier.rank == found.rank else 1.0
        found = busier if found.extra_seconds < mostly_seen * busier.extra_seconds else found
    tokens = {rank: float(columns.processed[rows[rank]].mean()) for rank, columns in held.items()}
    return found if any(value != value for value in tokens.values()) else replace(found, tokens=tokens)


def _by_phases(case: Case, held: Held, rows: Rows) -> SlowRank:
    # Every rank recorded its waits in forward and backward apart: on a GPU its device has, else its host.
    timed = [columns.device_seconds if case.on_cuda else columns.phase_seconds for columns in held.values()]
    apart = all("communication" in of and "backward" in of for of in timed)
    phases = {rank: _own_phases(columns, rows[rank], case.on_cuda, apart) for rank, columns in held.items()}
    own = {rank: np.sum(list(of.values()), axis=0) for rank, of in phases.items()}
    medians = _medians(own)
    of_phase = {rank: {name: float(np.median(of)) for name, of in phases[rank].items()} for rank in own}
    slow = max(medians, key=lambda rank: medians[rank])
    others = [rank for rank in own if rank != slow]
    usual = {name: float(np.median([of_phase[rank][name] for rank in others])) for name in of_phase[slow]}
    phase = max(usual, key=lambda name: of_phase[slow][name] - usual[name])
    extra = medians[slow] - float(np.median([medians[rank] for rank in others]))
    estimates = phase == "forward" and not apart
    if estimates:
        backward = float(np.median(held[slow].phase("backward")[rows[slow]]))
        extra += _backward_extra(case, backward, of_phase[slow][phase], usual[phase])
    return SlowRank(
        rank=slow,
        phase=phase,
        phase_seconds={rank: of[phase] for rank, of in of_phase.items()},
        extra_seconds=extra,
        slowest_share=_slowest_share(own, slow),
        on_device=case.on_cuda and phase in held[slow].device_seconds,
        backward_is_estimated=estimates,
    )


def _own_phases(columns: StepColumns, rows: np.ndarray, on_cuda: bool, apart: bool) -> dict[str, Column]:
    """A step's time of a rank's own. The data wait is that for its own loader, without the ranks' exchange of token
    counts. On CUDA the forward, and where waits are known the backward, is what the device took; optimizer and loss
    wait for it."""
    names = _WAITS_APART if apart and not on_cuda else ALONE if on_cuda else (*ALONE, "optimizer")
    found = {name: columns.own(name)[rows] for name in names}
    if "wait_seconds" in columns.loader and not apart:
        found["data_wait"] = np.nan_to_num(columns.loader["wait_seconds"][rows])
    for name in ("forward", "backward") if apart else ("forward",):
        device = columns.device_seconds.get(name)
        if device is not None and np.isfinite(device[rows]).all():
            found[name] = np.maximum(found.get(name, 0.0), device[rows])
    return found


def _backward_extra(case: Case, backward: float, forward: float, usual: float) -> float:
    """How much longer the slow rank's backward is than another's, which the others' cannot show: they wait in it. A
    backward takes twice the forward, under an adapter once, with checkpointing once more. What is beyond that of the
    usual forward is slow, at most in proportion to its own. Hand-worked: forward 0.2 s, usual 0.1; backward 0.4: beyond
    2 * 0.1 are 0.2 s, in proportion 0.4 / 2 = 0.2 s."""
    times = 1.0 if case.is_mostly_frozen else 2.0
    times += 1.0 if case.settings("model").get("activation_checkpointing") else 0.0
    if forward <= usual:
        return 0.0
    return max(0.0, min(backward - times * usual, backward * (1 - usual / forward)))


def _busier(case: Case, held: Held, rows: Rows) -> SlowRank | None:
    """By CPU time: on a CPU a rank that waits computes nothing, while DDP's buffers make all phases look alike. None
    where CPU time is not recorded, or none stands out by a seventh. Steps with a save or an evaluation are left out."""
    paused = np.any(
        [columns.phase(name)[rows[rank]] > 0 for rank, columns in held.items() for name in _PAUSES if len(rows[rank])],
        axis=0,
    )
    if (~paused).sum() >= _FEWEST_STEPS:
        rows = {rank: of[~paused] for rank, of in rows.items()}
    cpu = {rank: columns.cpu_seconds[rows[rank]] for rank, columns in held.items()}
    if not all(np.isfinite(of).all() for of in cpu.values()):
        return None
    slow, extra, usual = _most_excess(cpu)
    if extra < _STANDS_OUT * usual:
        return None
    threads = max(1, int(case.settings("host").get("torch_threads") or 1))
    medians = _medians(cpu)
    return SlowRank(slow, "computation", medians, extra / threads, _slowest_share(cpu, slow))


def _slow_in_pause(held: Held, phase: str) -> SlowRank | None:
    """The rank with the most time of its own in evaluations, or in saves, but for a rank 0 that alone saves. None for
    fewer than two of all ranks, or none a seventh longer."""
    rows = _common_rows({rank: columns.phase(phase) > 0 for rank, columns in held.items()}, held)
    own = {rank: columns.own(phase)[rows[rank]] for rank, columns in held.items()}
    count = len(next(iter(own.values())))
    if count < 2:
        return None
    slow, extra, usual = _most_excess(own)
    medians = _medians(own)
    if extra < _STANDS_OUT * usual or (phase == "checkpointing" and slow == 0 and usual < 0.5 * medians[slow]):
        return None
    return SlowRank(slow, phase, medians, extra, _slowest_share(own, slow), pauses=count)


def _most_excess(seconds: Mapping[int, Column]) -> tuple[int, float, float]:
    """The rank with the most beyond the others, the median of that, and the median of what is usual for the others."""
    excess = {rank: float(np.median(of - _usual_of_others(seconds, rank))) for rank, of in seconds.items()}
    slow = max(excess, key=lambda rank: excess[rank])
    return slow, excess[slow], float(np.median(_usual_of_others(seconds, slow)))


def _usual_of_others(seconds: Mapping[int, Column], rank: int) -> Column:
    """One by one, the median of the other ranks: all are slow where the machine or the disk is."""
    usual: Column = np.median([of for one, of in seconds.items() if one != rank], axis=0)
    return usual


def _medians(seconds: Mapping[int, Column]) -> dict[int, float]:
    return {rank: float(np.median(of)) for rank, of in seconds.items()}


def _slowest_share(seconds: Mapping[int, Column], rank: int) -> float:
    stacked = np.stack([seconds[one] for one in seconds])
    return float((stacked.argmax(axis=0) == list(seconds).index(rank)).mean())


def _common_rows(chosen: Rows, held: Held) -> dict[int, np.ndarray]:
    """By rank, the rows of the steps that were chosen of every rank, in the same order."""
    keys = {}
    for rank, columns in held.items():
        places = np.flatnonzero(chosen[rank])
        keys[rank] = {(columns.segment[place], columns.step[place]): place for place in places}
    common = sorted(set.intersection(*(set(of) for of in keys.values())))
    return {rank: np.array([of[key] for key in common], dtype=int) for rank, of in keys.items()}
