"""The words of a diagnosis, the same on a terminal and on the page."""

from __future__ import annotations

from typing import Any

from hf_efficient.records.findings import Cost, Diagnosis, Gain
from hf_efficient.units import seconds, share, short_seconds, size, usd

__all__ = [
    "GAINS_OVERLAP",
    "NOTHING_TO_FIX",
    "OF_THE_LOOP",
    "OF_THE_TRACE",
    "several_gains",
    "told_abstentions",
    "told_argument",
    "told_change",
    "told_cost",
    "told_fault",
    "told_gain",
    "told_instrument",
    "told_limit",
]

NOTHING_TO_FIX = "Nothing to fix."
GAINS_OVERLAP = "Gains are predictions, each of its remedy alone: of several findings they do not add up."
OF_THE_LOOP = "the loop's time"
OF_THE_TRACE = "the traced time"
_LITTLE_SECONDS = 0.1
_MOST_NAMED = 4
_NOT_JUDGED = "Nothing was found: no optimizer step is recorded that could be judged."


def several_gains(diagnosis: Diagnosis) -> bool:
    """Whether more than one finding promises something."""
    promised = [one for one in diagnosis.findings if any(remedy.gain is not None for remedy in one.remedies)]
    return len(promised) > 1


def told_limit(diagnosis: Diagnosis) -> str:
    """What bounds a run that has nothing to fix, or why nothing is told of it; empty where something is to fix."""
    if diagnosis.limit is not None:
        return f"The limit that it is at: {diagnosis.limit.text}."
    return "" if diagnosis.findings else _NOT_JUDGED


def told_abstentions(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Why, and which rules: those that lack the same thing together, and many of them by their number."""
    rules: dict[str, list[str]] = {}
    for one in diagnosis.abstentions:
        by = f" ({told_instrument(one.instrument)})" if one.instrument else ""
        rules.setdefault(f"{one.why}{by}", []).append(one.rule)
    return [(why, ", ".join(held) if len(held) <= _MOST_NAMED else f"{len(held)} rules") for why, held in rules.items()]


def told_cost(cost: Cost, loop_seconds: float = 0.0) -> str:
    """In words; empty where nothing is known.

    Args:
        cost: of a finding.
        loop_seconds: that its seconds are told a share of; 0: they are not.
    """
    told = [] if cost.seconds is None else [_duration(cost.seconds)]
    if cost.seconds is not None and loop_seconds > 0:
        told = [f"{told[0]} ({share(cost.seconds / loop_seconds)} of the loop)"]
    told += [] if not cost.usd else [usd(cost.usd)]
    told += [] if cost.bytes is None else [size(cost.bytes)]
    return ", ".join(told)


def told_gain(gain: Gain, of: str = OF_THE_LOOP) -> str:
    """In words: a prediction.

    Args:
        gain: of a remedy.
        of: what its share is of.
    """
    told = []
    if gain.share is not None and gain.seconds is not None:
        told.append(f"about {share(gain.share)} of {of}, {_duration(gain.seconds)}")
    if gain.bytes is not None:
        told.append(f"about {size(gain.bytes)}")
    if gain.usd:
        told.append(usd(gain.usd))
    return ", ".join(told) or "gain not predicted"


def _duration(value: float) -> str:
    """So that little is not nothing."""
    return short_seconds(value) if 0 < value < _LITTLE_SECONDS else seconds(value)


def told_change(key: str, value: Any) -> str:
    """As a recipe's command line takes it: ``train.bf16=true``."""
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key}={shown}"


def told_argument(key: str, value: Any) -> str:
    """As the ``TrainingArguments`` of a script take it: ``bf16=True,``; what is none of them, as a recipe has it."""
    section, _, name = key.partition(".")
    return f"{name}={value!r}," if section == "train" else told_change(key, value)


def told_instrument(instrument: str) -> str:
    """What would give the evidence that a rule lacks; empty where nothing would."""
    return f"{instrument} would tell" if instrument else ""


def told_fault(fault: str) -> str:
    """A rule that failed."""
    return f"A rule failed, a defect of hf_efficient: {fault}"
