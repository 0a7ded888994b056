"""A run held against its limits, step by step."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.estimate.budget import Clearance, LimitName, Limits, clearance
from hf_efficient.estimate.forecast import Pace, forecast, most_steps_within
from hf_efficient.measure.live import LiveRun

__all__ = ["BudgetWatch", "Look", "Passing"]

_SETTLED_STEPS = 5
_CLEARLY_WORSE = 1.2
_EXCHANGE_SECONDS = 10.0
_MOST_STEPS = 1000


@dataclass(frozen=True)
class Passing:
    """The forecast passes a limit.

    Attributes:
        limit: the one that comes first.
        total: what the whole run will have spent, in its unit.
        fits: steps with which it would not be passed.
        train_seconds: from now to the end of the training.
        at_least: whether something to come is left out of both.
    """

    limit: LimitName
    total: float
    fits: int
    train_seconds: float
    at_least: bool


@dataclass(frozen=True)
class Look:
    """What a look at the run found.

    Attributes:
        spent: the limit that leaves no room for what comes next.
        passing: a forecast that is worth a warning now.
        next_step: the step after which the next look is worth an exchange between ranks.
    """

    spent: LimitName | None
    passing: Passing | None
    next_step: int


class BudgetWatch:
    """Belongs to one ``train()`` call, on the rank that decides."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._warned_seconds: float | None = None

    def look(self, live: LiveRun, step: int, *, evaluates: bool, saves: bool) -> Look:
        """After an optimizer step, before the evaluation and the save that belong to it.

        There is room as long as these, one more step and a checkpoint fit.

        Args:
            live: the run.
            step: optimizer steps done.
            evaluates: whether an evaluation is due.
            saves: whether a checkpoint is due.
        """
        spent = live.spent()
        first = clearance(self._limits, spent, live.price_usd_per_hour, live.watts())
        if first is None:
            return Look(None, None, step + 1)
        pace = live.pace()
        due = evaluates * (pace.evaluation_seconds or 0.0) + saves * (pace.save_seconds or 0.0)
        room = first.seconds - due - (pace.step_seconds or 0.0) - (pace.save_seconds or 0.0)
        if room < 0:
            return Look(first.limit, None, step + 1)
        return Look(None, self._passing(live, first, pace, step, due), step + _steps_until_next(room, pace))

    def _passing(self, live: LiveRun, first: Clearance, pace: Pace, step: int, due_seconds: float) -> Passing | None:
        if live.schedule is None or live.figures.steps < _SETTLED_STEPS:
            return None
        rest = forecast(live.schedule, step, pace)
        if rest is None or rest.seconds + due_seconds <= first.seconds:
            return None
        spent, left = live.spent(), rest.seconds + due_seconds
        if self._warned_seconds is not None and spent.wall_seconds + left < _CLEARLY_WORSE * self._warned_seconds:
            return None
        self._warned_seconds = spent.wall_seconds + left
        used, limit = spent.of(first.limit) or 0.0, self._limits.given()[first.limit]
        fits = most_steps_within(first.seconds - due_seconds, live.schedule, step, pace)
        return Passing(
            first.limit,
            total=used + (limit - used) * left / first.seconds,
            fits=step if fits is None else fits,
            train_seconds=left,
            at_least=rest.lower_bound,
        )


def _steps_until_next(room_seconds: float, pace: Pace) -> int:
    """Half of what is left, or ten seconds if that is less; one step where nothing is known."""
    if not pace.step_seconds:
        return 1
    return max(1, min(_MOST_STEPS, int(min(_EXCHANGE_SECONDS, room_seconds / 2) / pace.step_seconds)))
