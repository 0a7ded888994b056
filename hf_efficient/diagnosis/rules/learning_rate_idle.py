"""A learning rate that changes nothing."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.logged import is_flat, logged
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy, Severity

__all__ = ["learning_rate_idle"]

_FEWEST_STEPS = 20
_FEWEST_LOGS = 3
_FLAT = 0.02
_STANDS_STILL = 2e-5
_NOTHING = 1e-6
_STILL_RISING = 0.5
_WARM_UP = 0.05
_PER_ADAPTER, _PER_WEIGHT = 2e-4, 2e-5
_SIGN_LIKE = ("adam", "lion", "adagrad", "adafactor")


def learning_rate_idle(case: Case) -> Verdict:
    """The loss stays where it is, and no weight can have moved; or the run ends within its warm-up.

    Adam and its kin move a weight by about the learning rate per step, whatever its gradient, so that the rates added
    up bound how far any weight can have come; weights of language models are some hundredths. Preferences are learnt at
    rates at which nothing else is, and say nothing here unless the rate is 0.
    """
    if case.first is None:
        return abstains("learning_rate_idle", NO_STEPS)
    rates, losses, steps = logged(case, "learning_rate"), logged(case, "loss"), case.account.steps.count
    if len(rates) < _FEWEST_LOGS or len(losses) < _FEWEST_LOGS or steps < _FEWEST_STEPS:
        why = "fewer than three losses, or than twenty steps, were logged"
        return abstains("learning_rate_idle", why, "train.logging_steps, or a longer run")
    moved = float(rates.mean()) * steps
    evidence = [
        Evidence("learning rate, highest", float(rates.max()), "", "steps.jsonl: learning_rate"),
        Evidence("learning rates added up", moved, "", "steps.jsonl: learning_rate, mean times steps"),
        Evidence("first loss", float(losses[0]), "", "steps.jsonl: loss"),
        Evidence("last loss", float(losses[-1]), "", "steps.jsonl: loss"),
    ]
    asked, planned = case.argument("learning_rate"), case.facts.get("run", {}).get("max_steps")
    rising = bool(np.all(np.diff(rates) > 0))
    ended = planned is not None and steps >= planned
    if rising and not ended and asked and rates[-1] < asked:
        why = f"the run is within its warm-up, at {rates[-1]:.2g} of {asked:.2g}"
        return abstains("learning_rate_idle", why, "a longer run")
    still = _is_sign_like(case) and moved < _STANDS_STILL and not case.is_of_preferences
    if is_flat(losses, _FLAT) and (rates.max() == 0 or still):
        title = f"the learning rate does nothing: {rates.max():.2g} at most, and the loss stays at {losses[-1]:.3g}"
        severity: Severity = "critical" if moved < _NOTHING else "warning"
        return _finding(severity, title, evidence, _higher(case, float(rates.max())))
    if asked and ended and rising and rates[-1] < _STILL_RISING * asked:
        title = f"the run ends within its warm-up, at {rates[-1] / asked:.0%} of the learning rate that was asked for"
        warm_up = max(1, round(_WARM_UP * steps))
        remedy = Remedy(f"warm up for {warm_up} steps", {"train.warmup_steps": warm_up})
        return _finding("warning", title, evidence, [remedy])
    return None


def _is_sign_like(case: Case) -> bool:
    name = str(case.settings("optimizer").get("class", "")).lower()
    return any(kind in name for kind in _SIGN_LIKE)


def _finding(severity: Severity, title: str, evidence: list[Evidence], remedies: list[Remedy]) -> Finding:
    return Finding("learning_rate_idle", title, severity, "measured", evidence, remedies=remedies)


def _higher(case: Case, highest: float) -> list[Remedy]:
    asked = case.argument("learning_rate") or 0.0
    model = case.settings("model")
    adapter = (model.get("trainable_parameters") or 0) < 0.5 * (model.get("parameters") or 0)
    usual = _PER_ADAPTER if adapter else _PER_WEIGHT
    if asked < usual:
        what = f"a learning rate of {usual:g}, usual for {'adapters' if adapter else 'all weights'}"
        return [Remedy(what, {"train.learning_rate": usual})]
    return [Remedy(f"a schedule that reaches the learning rate asked for ({asked:g}); it reached {highest:.2g}")]
