"""The top remedy of a run's diagnosis, applied and run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_efficient.records.findings import Diagnosis, Gain
from planted_runs.case import PlantedCase
from planted_runs.running import Bench, Ran
from planted_runs.summary import GainCheck, check_gain

__all__ = ["Applied", "Prescription", "apply_remedy", "prescription"]

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
