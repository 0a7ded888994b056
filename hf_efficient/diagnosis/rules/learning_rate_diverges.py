"""A learning rate at which the loss grows."""

from __future__ import annotations

import math

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.logged import logged, noise_of, window_medians
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["learning_rate_diverges"]

_FEWEST_LOGS = 4
_GREW = 1.3
_TIMES_THE_NOISE = 3.0
_NOT_OVERCOME = 0.75


def learning_rate_diverges(case: Case) -> Verdict:
    """The loss, in medians of ten windows, rises by 30% and by three times its noise: from its start, or its best.

    A rise at the start that is overcome, so that the loss ends a quarter below where it began, is none.
    """
    if case.first is None:
        return abstains("learning_rate_diverges", NO_STEPS)
    losses = logged(case, "loss")
    if len(losses) < _FEWEST_LOGS:
        return abstains("learning_rate_diverges", "fewer than four losses were logged", "train.logging_steps")
    medians, noise = window_medians(losses), noise_of(losses)
    if medians.min() <= 0:
        return None  # of a loss that may be negative a ratio says nothing

    def grew(before: float, after: float) -> bool:
        return after >= _GREW * before and after - before > _TIMES_THE_NOISE * noise

    start, best, peak, end = (float(one) for one in (medians[0], medians.min(), medians.max(), medians[-1]))
    stays_up = grew(start, peak) and end >= _NOT_OVERCOME * start
    if not stays_up and not grew(best, end):
        return None
    low, high = best, end
    if grew(start, peak):
        low, high = float(losses[: int(losses.argmax()) + 1].min()), float(losses.max())
    rates, asked = logged(case, "learning_rate"), case.argument("learning_rate")
    highest = float(rates.max()) if len(rates) else asked
    evidence = [
        Evidence("loss before it grew", low, "", "steps.jsonl: loss"),
        Evidence("highest loss", float(losses.max()), "", "steps.jsonl: loss"),
        Evidence("last loss", float(losses[-1]), "", "steps.jsonl: loss"),
        Evidence("what a log differs by from the one before", noise, "", "steps.jsonl: loss, median"),
    ]
    if highest:
        evidence.append(Evidence("highest learning rate", highest, "", "steps.jsonl: learning_rate"))
    rate = f" at a learning rate of {highest:.2g}" if highest else ""
    return Finding(
        rule="learning_rate_diverges",
        title=f"the loss grows from {low:.3g} to {high:.3g}{rate}",
        severity="critical",
        confidence="likely",
        evidence=evidence,
        remedies=_remedies(asked),
        explains=["not_finite_steps", "scaler_skips"],
    )


def _remedies(asked: float | None) -> list[Remedy]:
    if not asked:
        return [Remedy("a lower learning rate")]
    digit = 10.0 ** math.floor(math.log10(asked / 10))
    lower = round(asked / 10 / digit, 1) * digit
    return [
        Remedy(
            f"a tenth of the learning rate: {lower:g}", {"train.learning_rate": float(f"{lower:.2g}")}, "it may be slow"
        )
    ]
