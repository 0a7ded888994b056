"""Evaluations and saves less often."""

from __future__ import annotations

import math

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.findings import Evidence

__all__ = ["distance", "pause_evidence", "rarer"]

_SCHEDULED = {"eval_steps": "evaluate_every", "save_steps": "save_every"}
"""What the run said of its schedule, in steps, also where its argument is a share of all steps or an epoch."""


def rarer(
    case: Case, spent_seconds: float, steps_key: str, strategy_key: str, allowed: float
) -> tuple[int, float] | None:
    """Every how many steps a pause takes no more than a share of the loop, and the seconds it then takes in this run.

    A run that is too short for that keeps the one at its end.

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
    every = case.facts.get("run", {}).get(_SCHEDULED.get(steps_key, "")) or case.argument(steps_key)
    if not every or every < 1:
        every = steps
    pauses = steps // int(every)
    if pauses < 1:
        return None
    training = case.loop_seconds - spent_seconds
    planned = int(case.facts.get("run", {}).get("max_steps") or steps)
    longer = min(distance(spent_seconds / pauses, training / steps, allowed), max(planned, steps))
    # Evaluations and saves of the Trainer come after the last step as well.
    left = steps // longer if steps_key == "logging_steps" else -(-steps // longer)
    return longer, spent_seconds / pauses * min(left, pauses)


def pause_evidence(case: Case, phase: str, one: str) -> list[Evidence]:
    """What a kind of pause took of the loop, those outside it left out.

    Args:
        case: the run, with steps.
        phase: ``evaluation`` or ``checkpointing``.
        one: what each is called.
    """
    first, spent, source = case.first, case.phase_seconds(phase), f"steps.jsonl: phase_seconds.{phase}"
    count = 0 if first is None else int((first.phase(phase) > 0).sum())
    found = [
        Evidence(f"share of the loop in {one}s", case.share(spent), "share", source),
        Evidence(f"time in {one}s", spent, "seconds", source),
        Evidence("steps with one", count, "count", source),
    ]
    if count:
        found.append(Evidence(f"mean {one}", spent / count, "seconds", source))
    return found


def distance(pause_seconds: float, step_seconds: float, allowed: float) -> int:
    """After how many steps a pause takes a share of the loop: ``n = p * (1 - a) / (a * s)``.

    ``n`` steps and a pause then take ``p / a``, since ``p / (n * s + p) = a``.
    Hand-worked: pauses of 6 s, steps of 0.6 s, 10% allowed: 6 * 0.9 / (0.1 * 0.6) = 90.

    Args:
        pause_seconds: of one.
        step_seconds: of a step, without it.
        allowed: share of the loop that they may take.

    Returns:
        Rounded up to two digits, at least 1.
    """
    return max(1, _round_up(pause_seconds * (1 - allowed) / (allowed * step_seconds)))


def _round_up(steps: float) -> int:
    """To two digits: 137.2 to 140; 89.999999999 is what a division leaves of 90."""
    digit = 10 ** max(0, math.floor(math.log10(steps)) - 1)
    return math.ceil(round(steps / digit, 9)) * digit
