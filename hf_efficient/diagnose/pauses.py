"""Evaluations and saves less often."""

from __future__ import annotations

import math

from hf_efficient.diagnose.case import Case

__all__ = ["rarer"]


def rarer(
    case: Case, spent_seconds: float, steps_key: str, strategy_key: str, allowed: float
) -> tuple[int, float] | None:
    """Every how many steps a pause takes no more than a share of the loop, and the seconds it then takes in this run.

    Of ``n`` pauses that took ``p`` seconds beside ``t`` seconds of training, ``allowed * t / (1 - allowed) / (p / n)``
    may stay. Hand-worked: 10 pauses of 6 s beside 60 s of training, 10% allowed: 0.1 * 60 / 0.9 / 6 = 1.11, so one may
    stay; over 100 steps that is every 90 steps (90.0 = 100 / 1.11), rounded up to two digits.

    Args:
        case: the run.
        spent_seconds: in such pauses, in the loop.
        steps_key: the argument that tells their distance: ``eval_steps``.
        strategy_key: the argument that tells how it is counted: ``eval_strategy``.
        allowed: share of the loop that they may take.

    Returns:
        None where the run is shorter than such a distance, or the pauses follow no distance (``best``).
    """
    first = case.first
    if first is None or case.argument(strategy_key) not in ("steps", "epoch"):
        return None
    steps = case.account.steps.count
    every = case.argument(steps_key) if case.argument(strategy_key) == "steps" else _per_epoch(case)
    if not every or every < 1:
        every = steps
    pauses = steps // int(every)
    if pauses < 1:
        return None
    training = case.loop_seconds - spent_seconds
    may_stay = allowed * training / (1 - allowed) / (spent_seconds / pauses)
    longer = _round_up(steps / may_stay)
    return longer, spent_seconds / pauses * (steps // longer)


def _per_epoch(case: Case) -> int | None:
    schedule = case.facts.get("run", {})
    return schedule.get("evaluate_every") or schedule.get("save_every")


def _round_up(steps: float) -> int:
    """To two digits: 137.2 to 140."""
    digit = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return math.ceil(steps / digit) * digit
