"""What became of the prediction that a run's recipe says it tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.measured_run import MeasuredRun, measured_run
from hf_efficient.estimate.gain_check import Outcome, judge_gain, saved_share, saved_spread
from hf_efficient.recipe.confirms_section import ConfirmsSection
from hf_efficient.records.confirmation import Confirmation, Verdict
from hf_efficient.records.findings import Abstention, Finding

__all__ = ["asked_of", "confirm", "confirmations"]

_SECTION: Final = "efficiency.confirms."
_TOLD: Final[Mapping[Outcome, tuple[Verdict, str]]] = {
    "as_predicted": ("confirmed", ""),
    "below_half": ("smaller", "less than half of it"),
    "above_twice": ("larger", "more than twice as much"),
    "no_difference": ("retracted", "no difference beyond the spread"),
    "worse": ("retracted", "it takes more than before"),
    "hidden": ("unknown", "the spread of the steps hides a gain of that size, which more steps would tell"),
}


def confirmations(case: Case, findings: Sequence[Finding], abstentions: Sequence[Abstention]) -> list[Confirmation]:
    """Of a run that has been judged; none where its recipe tests no prediction.

    Args:
        case: the run.
        findings, abstentions: what its rules said.
    """
    asked = asked_of(case.recipe or {})
    return [] if asked is None else confirm(asked, measured_run(case), findings, abstentions, is_short=case.is_short)


def asked_of(recipe: Mapping[str, Any]) -> ConfirmsSection | None:
    """The prediction that a recipe tests; None without one, or where the file of the run holds none that is valid.

    Args:
        recipe: its values by dotted key.
    """
    values: dict[str, Any] = {}
    for key, value in recipe.items():
        name, _, part = key.removeprefix(_SECTION).partition(".")
        if key.startswith(_SECTION) and part:
            values.setdefault(name, {})[part] = value
        elif key.startswith(_SECTION):
            values[name] = value
    try:
        return ConfirmsSection.model_validate(values) if values else None
    except ValidationError:  # the run itself was refused such a recipe: somebody has changed its file since
        return None


def confirm(
    asked: ConfirmsSection,
    run: MeasuredRun,
    findings: Sequence[Finding] = (),
    abstentions: Sequence[Abstention] = (),
    *,
    is_short: bool = False,
) -> list[Confirmation]:
    """Hold a run against the prediction: its time, its memory; of a remedy that predicts neither, whether it mends.

    Args:
        asked: the prediction.
        run: that applied the remedy.
        findings, abstentions: what its rules said.
        is_short: whether its steps are too few for a finding to stand or go.
    """
    other = _other(asked.setup, run.setup)
    found = []
    if asked.predicted_saving is not None:
        found.append(_time(asked, run, asked.predicted_saving, other))
    if asked.predicted_bytes is not None:
        found.append(_memory(asked, run, asked.predicted_bytes, other))
    if found:
        return found
    verdict: Verdict
    verdict, why = ("unknown", other) if other else _mended(asked.rule, findings, abstentions, is_short)
    return [Confirmation(asked.rule, asked.run, "finding", None, None, None, verdict, why)]


def _time(asked: ConfirmsSection, run: MeasuredRun, predicted: float, other: str) -> Confirmation:
    before, after = asked.seconds_per_token, run.seconds_per_token
    missing = other or _missing(before, after, "has no count of the time and tokens of its training loop")
    if missing or before is None or after is None:
        return Confirmation(asked.rule, asked.run, "time", predicted, None, None, "unknown", missing)
    achieved = saved_share(before, after)
    missing = _missing(asked.spread, run.spread, "has too few steps past the warm-up to tell a difference from chance")
    if missing or asked.spread is None or run.spread is None:
        return Confirmation(asked.rule, asked.run, "time", predicted, achieved, None, "unknown", missing)
    spread = saved_spread(achieved, asked.spread, run.spread)
    verdict, why = _TOLD[judge_gain(predicted, achieved, spread)]
    return Confirmation(asked.rule, asked.run, "time", predicted, achieved, spread, verdict, why)


def _memory(asked: ConfirmsSection, run: MeasuredRun, predicted: int, other: str) -> Confirmation:
    before, after = asked.peak_bytes, run.peak_bytes
    missing = other or _missing(before, after, "has no record of its peak memory")
    if missing or before is None or after is None:
        return Confirmation(asked.rule, asked.run, "memory", predicted, None, None, "unknown", missing)
    outcome = judge_gain(predicted, before - after, 0.0)
    verdict, why = _TOLD[outcome] if outcome != "no_difference" else ("retracted", "no difference")
    return Confirmation(asked.rule, asked.run, "memory", predicted, before - after, None, verdict, why)


def _mended(
    rule: str, findings: Sequence[Finding], abstentions: Sequence[Abstention], is_short: bool
) -> tuple[Verdict, str]:
    held = next((one for one in findings if one.rule == rule), None)
    abstained = next((one for one in abstentions if one.rule == rule), None)
    if held is not None and held.severity != "info":
        return "retracted", "the finding is still there"
    if is_short or abstained is not None:
        return "unknown", "this run has too few steps" if abstained is None else f"the rule abstains: {abstained.why}"
    return "confirmed", "" if held is None else "what is left of the finding is no more than info"


def _other(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """In what the two cannot be compared; empty where they can. A field of ``train:`` that is not set has a default."""
    fields = [name for name in dict.fromkeys([*before, *after]) if name.startswith("train.")] if before else []
    known = [name for name in before if name in after and name not in fields]
    differing = [name for name in known + fields if before.get(name) != after.get(name)]
    told = [f"its {name} ({after.get(name, 'unset')}, not {before.get(name, 'unset')})" for name in differing]
    return f"this run differs from the first one in {' and '.join(told)}" if told else ""


def _missing(before: float | None, after: float | None, what: str) -> str:
    if before is None:
        return f"the first run {what}"
    return f"this run {what}" if after is None else ""
