"""A run held against its limits, step by step, and how its ranks agree to end it after the same step."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from hf_efficient.estimate.forecast import Clearance, LimitName, Limits, Pace, clearance, forecast, most_steps_within
from hf_efficient.recording.live import LiveRun

_ASKED_SECONDS, _MOST_STEPS_UNASKED = 1.0, 100
_SETTLED_STEPS = 5
_CLEARLY_WORSE = 1.2
_EXCHANGE_SECONDS = 10.0
_MOST_STEPS = 1000


class Agreement:
    """Exchanges over the hosts (gloo), after steps that all ranks know; each use takes an agreement of its own."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._shared = world_size > 1 and dist.is_available() and dist.is_initialized()
        self.decides = rank == 0 or not self._shared
        self._group = dist.new_group(backend="gloo") if self._shared else None
        self._next = 0
        self._last: tuple[int, float] | None = None

    def due(self, step: int) -> bool:
        return not self._shared or step >= self._next

    def settle(self, decision: int = 0, next_step: int = 0) -> int:
        """Send or receive rank 0's decision and the step of the next exchange."""
        if not self._shared:
            return decision
        sent = torch.tensor([decision, next_step])
        dist.broadcast(sent, src=0, group=self._group)
        decision, self._next = (int(one) for one in sent.tolist())
        return decision

    def anywhere(self, asked: bool, step: int) -> bool:
        """Whether any rank was asked; the next exchange is about a second later, at most a hundred steps."""
        if not self._shared or step < self._next:
            return asked and not self._shared
        now, ahead = time.monotonic(), 1
        if self._last is not None:
            rate = (step - self._last[0]) / max(now - self._last[1], 1e-9)
            ahead = max(1, min(_MOST_STEPS_UNASKED, int(_ASKED_SECONDS * rate)))
        sent = torch.tensor([int(asked), -ahead])
        dist.all_reduce(sent, op=dist.ReduceOp.MAX, group=self._group)
        self._last, self._next = (step, now), step - int(sent[1])
        return bool(sent[0])

    def total(self, value: float) -> float:
        if not self._shared:
            return value
        total = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(total, group=self._group)
        return float(total)


@dataclass(frozen=True)
class Passing:
    """The first limit that the forecast passes, the run's total in its unit, and the steps that would fit.
    ``train_seconds`` run to the end of the training; ``at_least``: both leave something out."""

    limit: LimitName
    total: float
    fits: int
    train_seconds: float
    at_least: bool


@dataclass(frozen=True)
class Look:
    """The limit without room, a forecast worth a warning, and the next look's step."""

    spent: LimitName | None
    passing: Passing | None
    next_step: int


class BudgetWatch:
    """Belongs to one ``train()`` call, on the rank that decides."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._warned_seconds: float | None = None

    def look(self, live: LiveRun, step: int, *, evaluates: bool, saves: bool) -> Look:
        """After an optimizer step, before its evaluation and save: these, one more step and a checkpoint must fit."""
        spent = live.spent()
        first = clearance(self._limits, spent, live.price_usd_per_hour, live.watts())
        if first is None:
            return Look(None, None, step + 1)
        steps = live.figures.steps  # all of them, before the pace is asked for
        pace = live.pace()
        due = evaluates * (pace.evaluation_seconds or 0.0) + saves * (pace.save_seconds or 0.0)
        room = first.seconds - due - (pace.step_seconds or 0.0) - (pace.save_seconds or 0.0)
        if room < 0:
            return Look(first.limit, None, step + 1)
        passing = self._passing(live, first, pace, step, due) if steps >= _SETTLED_STEPS else None
        ahead = int(min(_EXCHANGE_SECONDS, room / 2) / pace.step_seconds) if pace.step_seconds else 1
        return Look(None, passing, step + max(1, min(_MOST_STEPS, ahead)))

    def _passing(self, live: LiveRun, first: Clearance, pace: Pace, step: int, due_seconds: float) -> Passing | None:
        if live.schedule is None:
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
