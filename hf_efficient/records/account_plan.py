"""What was planned before a run, beside what it came to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlanAccount", "PlanFigure"]


@dataclass(frozen=True)
class PlanFigure:
    """One figure, as it was planned and as it came.

    Attributes:
        name: with its unit: ``weights_bytes``, ``step_seconds``, ``training_cost_usd``, ...
        predicted: None where it could not be told.
        observed: None where it was not measured, or is of something else.
        relative_error: ``predicted`` / ``observed`` - 1, or what ``note`` says; None where either is not known.
        note: why one is not known, or what they are of.
    """

    name: str
    predicted: float | None
    observed: float | None
    relative_error: float | None
    note: str = ""


@dataclass(frozen=True)
class PlanAccount:
    """What was planned before the run, beside what it came to.

    Attributes:
        device: what it was planned on.
        steps: optimizer steps planned.
        figures: peaks and kinds of memory, then the training loop: speed, time, cost, energy, without evaluations and
            saves.
    """

    device: str
    steps: int
    figures: list[PlanFigure]
