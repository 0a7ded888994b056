"""Time of the training loop that callbacks and the user's own methods take, or that nobody is known to take."""

import math

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.remedies import INSTRUMENTS
from hf_efficient.diagnosis.rule import Row, Verdict, finding, rule
from hf_efficient.records.account import HeldTime
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import share, short_seconds

_TOO_MUCH = 0.10
_WORTH_A_ROW = 0.01
_MOST_ROWS = 5
_WITHOUT_WORK = ("bookkeeping", "unattributed")
_OTHER_RULES = ("logging", "evaluation", "checkpointing")
_COMPUTES = ("compute_loss", "prediction_step")
_RARELY = 10
_SOURCE = "run.json: time.held"
_RARER = (
    "do the work of {} every tenth step (`if state.global_step % 10: return`), or give it to a thread of its own: the "
    "training waits for every callback"
)
_SHORTER = "make {} quicker: time its lines (profile.lines), and do its slow part more rarely or in a thread"
_UNKNOWN = (
    "no callback and none of your methods holds most of it: profile Python to see the functions that take it "
    "(profile.python)"
)
_WITHOUT_INSTRUMENT = "leave {} out of runs that you do not look into: an instrument belongs to a short run of its own"
_NAMES_NOTHING = "use EfficientTrainer or EfficientTrainerMixin: the account then names each callback and method"


@rule()
def own_code(case: Case) -> Verdict:
    """A tenth of the loop or more is bookkeeping, callbacks or unattributed; the method or callback behind it is named.
    Callbacks within logs, evaluations and checkpoints belong to the rules of those."""
    idle = {"bookkeeping": case.phase_seconds("bookkeeping")}
    idle["unattributed"] = max(0.0, case.loop_seconds - math.fsum(map(case.phase_seconds, case.first.phase_seconds)))
    holders = [
        one
        for one in case.account.time.held
        if one.phase in _WITHOUT_WORK or (one.is_callback and one.phase not in _OTHER_RULES)
    ]
    elsewhere = math.fsum(one.seconds for one in holders if one.phase not in _WITHOUT_WORK)
    spent = math.fsum(idle.values()) + elsewhere
    if case.share(spent) < _TOO_MUCH:
        return None
    first = holders[0] if holders and holders[0].seconds >= spent / 2 else None
    evidence: list[Row] = [
        ("bookkeeping, callbacks and unattributed", case.share(spent), "share", "steps.jsonl: phase_seconds"),
        ("bookkeeping", idle["bookkeeping"], "seconds", "steps.jsonl: phase_seconds.bookkeeping"),
        ("unattributed", idle["unattributed"], "seconds", "steps.jsonl: wall_seconds less the phases"),
        ("callbacks in other phases", elsewhere or None, "seconds", _SOURCE),
    ]
    rest = max(0.0, spent - math.fsum(one.seconds for one in holders))
    if rest >= spent / 2:
        remedies = [Remedy(_NAMES_NOTHING if case.account.recorded_by == "callback" else _UNKNOWN)]
    else:
        remedies = _remedies(case, holders) or [Remedy(_UNKNOWN)]
    return finding(_title(case, spent, first), [*evidence, *_rows(case, holders)], remedies, case.cost(spent))


def _title(case: Case, spent: float, first: HeldTime | None) -> str:
    if first is None:
        return f"{share(case.share(spent))} of the training loop is bookkeeping, callbacks and unattributed time"
    each = short_seconds(first.seconds / max(1, case.account.steps.count))
    key = _instrument(first)
    name = first.name if key is None else f"the instrument {key}"
    return f"{share(case.share(first.seconds))} of the training loop is spent in {name}, {each} a step"


def _instrument(one: HeldTime) -> str | None:
    callback = one.name.partition(".")[0]
    return next((f"profile.{key}" for key, name in INSTRUMENTS.items() if name == callback), None)


def _rows(case: Case, holders: list[HeldTime]) -> list[Row]:
    long = [one for one in holders if case.share(one.seconds) >= _WORTH_A_ROW][:_MOST_ROWS]
    return [(f"{one.name}, in {one.phase}", one.seconds, "seconds", _SOURCE) for one in long]


def _remedies(case: Case, holders: list[HeldTime]) -> list[Remedy]:
    found = []
    for one in holders[:_MOST_ROWS]:
        if one.seconds < holders[0].seconds / 4 or case.share(one.seconds) < _WORTH_A_ROW:
            continue
        if key := _instrument(one):
            gain = case.gain(one.seconds, "all of the time that was measured in it")
            found.append(Remedy(_WITHOUT_INSTRUMENT.format(key), gain=gain))
        elif one.is_callback and one.phase not in _OTHER_RULES:
            gain = case.gain(
                one.seconds * (1 - 1 / _RARELY), "every tenth step, each as long as those that were measured"
            )
            found.append(Remedy(_RARER.format(one.name), costs="it sees one step in ten", gain=gain))
        elif not one.name.endswith(_COMPUTES):
            found.append(Remedy(_SHORTER.format(one.name)))
    return found


def with_holders(found: Finding | None, case: Case, phase: str) -> Finding | None:
    """The finding about a phase, with the callbacks and methods of the user's own that take a part of it. One that
    takes half of it or more has a remedy."""
    holders = [one for one in case.account.time.held if one.phase == phase]
    if found is None or not holders:
        return found
    found.evidence.extend(finding("", _rows(case, holders), []).evidence)
    if holders[0].seconds >= case.phase_seconds(phase) / 2:
        found.remedies.extend(_remedies(case, holders[:1]))
    return found
