"""What a rule is.

What a rule over variants is, and the costs and gains that all of them count in.

What a rule of traces is, and what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.findings import Abstention, Cost, Evidence, Finding, Gain
from hf_efficient.records.isolation import Isolation, StepPart
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown

Verdict = Finding | Abstention | None
"""None: looked, and found nothing."""

Rule = Callable[[Case], Verdict]
"""A function named as its rule."""

MATTERS: Final = 0.05
"""Below this share of the loop's time a cost is no warning."""

NO_STEPS: Final = "no optimizer step is recorded"


def abstains(rule: str, why: str, instrument: str = "") -> Abstention:
    """A rule that cannot judge; ``instrument`` names what would give the evidence."""
    return Abstention(rule, why, instrument)


IsolatedRule = Callable[[Isolation], Finding | Abstention | None]
"""A function named as its rule."""

SOURCE: Final = "--isolate"


def share_of(found: Isolation, seconds: float) -> float:
    """Of an optimizer step."""
    return seconds / found.step_seconds


def cost(found: Isolation, step_seconds: float) -> Cost:
    """Over the whole run, of what a step takes.

    Args:
        found: the recipe.
        step_seconds: of each optimizer step.
    """
    whole = step_seconds * found.schedule.steps
    return Cost(seconds=whole, usd=_usd(found, whole))


def gain(found: Isolation, step_seconds: float, basis: str) -> Gain:
    """Over the whole run, where so much of each step is saved for the same tokens.

    Args:
        found: the recipe.
        step_seconds: not more than a step takes.
        basis: how it was predicted.
    """
    saved = max(0.0, min(step_seconds, found.step_seconds))
    whole = saved * found.schedule.steps
    return Gain(share_of(found, saved), whole, None, _usd(found, whole), basis)


def clear(found: Isolation, name: str) -> StepPart | None:
    """A part that takes time beyond its spread; None of any other."""
    part = found.part(name)
    return part if part is not None and part.seconds is not None and part.seconds > 0 else None


def unknown(found: Isolation, rule: str, name: str) -> Abstention | None:
    """Where a part applies and was not measured."""
    part = found.part(name)
    return Abstention(rule, f"{name}: {part.note}") if part is not None and part.seconds is None else None


def part_evidence(found: Isolation, part: StepPart, what: str) -> list[Evidence]:
    """Seconds of a part, its spread and its share."""
    assert part.seconds is not None
    evidence = [Evidence(what, part.seconds, "seconds", f"{SOURCE}: {part.how}")]
    if part.low is not None and part.high is not None:
        evidence.append(Evidence("at least", part.low, "seconds", f"{SOURCE}: its spread"))
        evidence.append(Evidence("at most", part.high, "seconds", f"{SOURCE}: its spread"))
    return [*evidence, Evidence("its share of a step", share_of(found, part.seconds), "share", SOURCE)]


def _usd(found: Isolation, seconds: float) -> float | None:
    return None if found.price_usd_per_hour is None else seconds * found.price_usd_per_hour / 3600


TraceRule = Callable[[TraceBreakdown, DeviceBreakdown], Finding | None]
"""Of a trace and its busiest device."""

RULE_SOURCE = "the trace"


def cost_of(seconds: float) -> Cost:
    """Of the traced time."""
    return Cost(seconds=seconds)


def gain_of(device: DeviceBreakdown, seconds: float, basis: str) -> Gain:
    """Of the device's traced time, saved for the same work."""
    window = device.busy.window_seconds
    saved = max(0.0, min(seconds, window))
    return Gain(saved / window if window else 0.0, saved, None, None, basis)


def on_device(device: DeviceBreakdown) -> str:
    """``device 0``."""
    return f"device {device.device}"
