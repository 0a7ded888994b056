"""What the findings of planted runs are worth: which is right, what is confused with what, and what gains came true."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from hf_efficient.estimate.significance import is_as_predicted, saved_share
from hf_efficient.records.findings import Diagnosis, Gain
from planted_runs.cases import PlantedCase
from planted_runs.running import Bench, Ran


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


_WORTH_A_SECOND_PAIR = 0.1


@dataclass(frozen=True)
class Prescription:
    """What is applied.

    Attributes:
        rule: whose remedy it is.
        what: the remedy, in a sentence.
        overrides: of the recipe; empty where the case mends its own code.
        gain: as it was predicted; None: it was not.
    """

    rule: str
    what: str
    overrides: Mapping[str, Any]
    gain: Gain | None


@dataclass(frozen=True)
class Applied:
    """A remedy and what came of it.

    Attributes:
        prescription: what was applied.
        check: its gain.
        gone: whether the rule is silent, or says no more than ``info``, in the run with the remedy.
        before: seconds per token without it, run by run.
        after: with it.
    """

    prescription: Prescription
    check: GainCheck
    gone: bool
    before: list[float]
    after: list[float]

    def to_json(self) -> dict[str, Any]:
        """Plain data for the file of results."""
        return asdict(self)


def prescription(case: PlantedCase, diagnosis: Diagnosis) -> Prescription | None:
    """The top remedy of the first finding: a change of the recipe, or the change of code that the case knows.

    None where there is no finding, or its top remedy changes no recipe and the case knows no change of code. That is
    for the expected rules alone.
    """
    if not diagnosis.findings or not diagnosis.findings[0].remedies:
        return None
    finding = diagnosis.findings[0]
    top = finding.remedies[0]
    if top.overrides:
        return Prescription(finding.rule, top.what, top.overrides, top.gain)
    if case.code_remedy and finding.rule in case.expected:
        return Prescription(finding.rule, f"{top.what} ({case.code_remedy})", {}, top.gain)
    return None


def apply_remedy(bench: Bench, case: PlantedCase, before: Ran, chosen: Prescription) -> Applied:
    """Run with the remedy, without, and once more each where the first pair's noise is over a tenth of the gain.

    The runs alternate: the one that was diagnosed, with, without, with.
    """
    runs_before, runs_after = [before], [_with(bench, case, chosen, 1)]
    runs_before.append(bench.run(case, "again"))
    check = _check(chosen, runs_before, runs_after)
    if check.noise > _WORTH_A_SECOND_PAIR * abs(check.achieved):
        runs_after.append(_with(bench, case, chosen, 2))
        check = _check(chosen, runs_before, runs_after)
    left = {one.rule for one in runs_after[-1].diagnosis.findings if one.severity != "info"}
    times = ([run.seconds_per_token for run in runs] for runs in (runs_before, runs_after))
    return Applied(chosen, check, chosen.rule not in left, *times)


def _with(bench: Bench, case: PlantedCase, chosen: Prescription, number: int) -> Ran:
    return bench.run(case, f"remedy-{number}", chosen.overrides, mended=not chosen.overrides)


def _check(chosen: Prescription, before: list[Ran], after: list[Ran]) -> GainCheck:
    share = None if chosen.gain is None else chosen.gain.share
    return check_gain(share, [run.seconds_per_token for run in before], [run.seconds_per_token for run in after])


def traceml_verdict(summary: Mapping[str, Any] | None) -> str:
    """The kind of TraceML's primary diagnosis, and those of its sections that say more than that all is normal."""
    if summary is None:
        return ""
    primary = summary.get("primary_diagnosis") or {}
    sections = [(summary.get(name) or {}).get("diagnosis") or {} for name in ("system", "process", "step_memory")]
    more = [one["kind"] for one in sections if one.get("kind") not in (None, "NORMAL", "NO_DATA", "BALANCED", "NO_GPU")]
    return ", ".join([str(primary.get("kind", "no verdict")), *more])


def findings_table(judged: Sequence[Judged], verdicts: Mapping[str, str]) -> Table:
    """A line per run: what was planted, what was found, whether that is right; TraceML's verdict where there is one."""
    table = Table("run", "planted", "first finding", "other findings", "right", title="Planted and found")
    if verdicts:
        table.add_column("TraceML")
    for one in judged:
        others = ", ".join(f"{rule}{'' if rule in one.alarms else ' (info)'}" for rule in one.others)
        first = f"{one.first}{'' if one.first in one.alarms else ' (info)'}" if one.first else "nothing"
        cells = [one.name, " or ".join(one.expected) or "healthy", first, others, "yes" if one.right else "[red]no[/]"]
        table.add_row(*cells, *([verdicts.get(one.name, "")] if verdicts else []))
    return table


def confusion_table(judged: Sequence[Judged]) -> Table:
    """Planted by found, as counts; only pairs that occurred."""
    table = Table("planted", "found", "runs", title="Confusion")
    for (planted, found), count in sorted(confusion(judged).items()):
        table.add_row(planted, found if planted in (found, "healthy") else f"[red]{found}[/]", str(count))
    return table


def score_lines(counts: Score) -> str:
    """In a sentence or two."""
    return (
        f"{counts.right} of {counts.faults} faults have their cause ranked first; "
        f"{counts.quiet} of {counts.healthy} healthy runs have no finding above info."
    )


def gains_table(applied: Mapping[str, Applied]) -> Table:
    """Predicted and achieved gains, as shares of the loop's time per token without padding."""
    columns = ("run", "remedy", "predicted", "achieved", "ratio", "in 0.5 to 2", "noise", "finding gone")
    table = Table(*columns, title="Gains, predicted and achieved")
    for name, one in applied.items():
        check = one.check
        change = " ".join(f"{key}={value}" for key, value in one.prescription.overrides.items())
        table.add_row(
            name,
            change or one.prescription.what,
            "none" if check.predicted is None else f"{check.predicted:.1%}",
            f"{check.achieved:.1%}",
            "" if check.ratio is None else f"{check.ratio:.2f}",
            "" if check.within is None else "yes" if check.within else "[red]no[/]",
            f"{check.noise:.1%}",
            "yes" if one.gone else "no",
        )
    return table
