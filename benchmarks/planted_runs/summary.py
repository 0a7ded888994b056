"""What the findings of planted runs are worth: which is right, what is confused with what, and what gains came true."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hf_efficient.estimate.comparison import is_as_predicted, saved_share

__all__ = ["GainCheck", "Judged", "Score", "check_gain", "confusion", "judge_findings", "noise", "score"]


@dataclass(frozen=True)
class Judged:
    """One run's findings, held against what was planted.

    Attributes:
        name: of the case.
        expected: rules that may stand first; empty: a healthy run.
        first: rule of the first finding; None: there is none.
        others: rules of the others, in their order.
        alarms: rules whose finding stands above ``info``, in their order.
        right: the first is expected; in a healthy run: there is no alarm.
    """

    name: str
    expected: tuple[str, ...]
    first: str | None
    others: tuple[str, ...]
    alarms: tuple[str, ...]
    right: bool


@dataclass(frozen=True)
class Score:
    """Counts of runs.

    Attributes:
        right: faults whose cause stands first.
        faults: runs with a fault.
        quiet: healthy runs without a finding above ``info``.
        healthy: healthy runs.
    """

    right: int
    faults: int
    quiet: int
    healthy: int


@dataclass(frozen=True)
class GainCheck:
    """A predicted gain beside the one that came, both as a share of the loop's time for the same tokens.

    Attributes:
        predicted: by the remedy; None: it predicted none.
        achieved: 1 - after / before; below 0: slower.
        ratio: achieved / predicted; None where nothing was predicted.
        within: whether at least half and at most twice of it came; None where there is none.
        noise: spread of the runs before and after, as a share of their time.
    """

    predicted: float | None
    achieved: float
    ratio: float | None
    within: bool | None
    noise: float


def judge_findings(name: str, expected: Sequence[str], findings: Sequence[tuple[str, str]]) -> Judged:
    """Hold a run's findings against what was planted.

    Args:
        name: of the case.
        expected: rules that may stand first; none: a healthy run.
        findings: rule and severity, the most important first.
    """
    rules = [rule for rule, _ in findings]
    alarms = tuple(rule for rule, severity in findings if severity != "info")
    first = rules[0] if rules else None
    right = first in expected if expected else not alarms
    return Judged(name, tuple(expected), first, tuple(rules[1:]), alarms, right)


def score(judged: Iterable[Judged]) -> Score:
    """How many are right."""
    held = list(judged)
    faults, healthy = ([one for one in held if bool(one.expected) is kind] for kind in (True, False))
    return Score(sum(one.right for one in faults), len(faults), sum(one.right for one in healthy), len(healthy))


def confusion(judged: Iterable[Judged]) -> dict[tuple[str, str], int]:
    """Runs by what was planted and what was found, as ``("data_storage", "few_workers")``.

    Planted is the first of the expected rules, or ``healthy``. Found is the first finding where it is not expected, or
    the planted one where it is; ``nothing`` where there is none. Of a healthy run it is the first alarm.
    """
    found: Counter[tuple[str, str]] = Counter()
    for one in judged:
        if not one.expected:
            found["healthy", one.alarms[0] if one.alarms else "nothing"] += 1
        else:
            found[one.expected[0], one.expected[0] if one.right else one.first or "nothing"] += 1
    return dict(found)


def noise(values: Sequence[float]) -> float:
    """Half of what the values span, as a share of their mean; 0 for one.

    Hand-worked: 9 and 11 span 2, half of it is 1, a tenth of the mean 10.
    """
    return (max(values) - min(values)) / 2 / statistics.fmean(values)


def check_gain(predicted: float | None, before: Sequence[float], after: Sequence[float]) -> GainCheck:
    """Hold a prediction against runs without and with its remedy.

    Hand-worked: 10 and 10 before, 7 and 9 after give 1 - 8 / 10 = 0.2; 0.25 were predicted, so the ratio is 0.8; the
    runs after span 2, so that the noise is 1 / 8.

    Args:
        predicted: share of the time.
        before: seconds per token, run by run.
        after: the same with the remedy.
    """
    achieved = saved_share(statistics.fmean(before), statistics.fmean(after))
    ratio = achieved / predicted if predicted else None
    within = is_as_predicted(predicted, achieved) if predicted else None
    return GainCheck(predicted, achieved, ratio, within, max(noise(before), noise(after)))
