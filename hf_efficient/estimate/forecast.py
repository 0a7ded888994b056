"""What is still to come of a training, in seconds, and which limit of its budget comes first."""

import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from statistics import median
from typing import Any, Literal

from hf_efficient.estimate.cost import JOULES_PER_KWH, SECONDS_PER_HOUR, cost_usd

RECENT_STEPS = 100
"""How many of the last steps give the pace."""

_LONGEST = 10.0


@dataclass(frozen=True)
class Schedule:
    """When a training evaluates and saves; transformers does both once more after its last step. ``evaluate_every``,
    ``save_every``: steps between two (those of an epoch, where evaluations follow epochs); None: none.
    ``evaluate_from``: the first step that is evaluated (``eval_delay``). ``save_best``: checkpoints are written when a
    metric improves, which is not known beforehand."""

    max_steps: int
    evaluate_every: int | None = None
    evaluate_from: int = 0
    evaluate_after: bool = False
    save_every: int | None = None
    save_best: bool = False

    def evaluations_left(self, step: int) -> int:
        """Evaluations that follow the one of this step, if it has one; those before and after training included."""
        return _occurrences(step, self.max_steps, self.evaluate_every, self.evaluate_from) + self.evaluate_after

    def saves_left(self, step: int) -> int:
        """Checkpoints that follow the one of this step, if it has one; those of ``save_best`` are not known."""
        return _occurrences(step, self.max_steps, self.save_every, 0)


def schedule_of(
    args: Any,
    max_steps: int,
    epoch_steps: int,
    eval_steps: float | None,
    save_steps: float | None,
    *,
    evaluate_at_end: bool = False,
) -> Schedule:
    """By transformers' ``TrainingArguments``, as its ``DefaultFlowCallback`` (5.23) decides. ``eval_steps``,
    ``save_steps``: steps between two, or below 1 their share of all. ``evaluate_at_end``: unless the Trainer did so."""

    def every(strategy: str, steps: float | None) -> int | None:
        if strategy == "steps" and steps:
            return math.ceil(max_steps * steps) if steps < 1 else int(steps)
        return epoch_steps if strategy == "epoch" else None

    evaluate_every = every(args.eval_strategy, eval_steps)
    delay = args.eval_delay * (epoch_steps if args.eval_strategy == "epoch" else 1)
    evaluates_last = evaluate_every is not None and delay <= max_steps
    return Schedule(
        max_steps=max_steps,
        evaluate_every=evaluate_every,
        evaluate_from=math.ceil(delay),
        evaluate_after=evaluate_at_end and (args.load_best_model_at_end or not evaluates_last),
        save_every=every(args.save_strategy, save_steps or max_steps),  # 0: transformers saves at the end
        save_best=args.save_strategy == "best",
    )


@dataclass(frozen=True)
class Pace:
    """How long things take; None where none was seen yet. Steps are without evaluation and saving."""

    step_seconds: float | None = None
    evaluation_seconds: float | None = None
    save_seconds: float | None = None


@dataclass(frozen=True)
class Forecast:
    """Time from now to the end of a training; ``lower_bound``: something of unknown duration is left out."""

    seconds: float
    lower_bound: bool


def forecast(schedule: Schedule, step: int, pace: Pace) -> Forecast | None:
    """``steps * step_seconds + evaluations * evaluation_seconds + saves * save_seconds``, of what is left. What follows
    the training besides an evaluation (the final save, merging, the end of the process) is not in it. The evaluation
    and the save of ``step``, the last one done, are not left. None where the time of a step is not known."""
    if pace.step_seconds is None:
        return None
    seconds, unknown = max(0, schedule.max_steps - step) * pace.step_seconds, False
    for left, each in (
        (schedule.evaluations_left(step), pace.evaluation_seconds),
        (schedule.saves_left(step), pace.save_seconds),
    ):
        if left and each is None:
            unknown = True
        elif each is not None:
            seconds += left * each
    return Forecast(seconds, unknown or (schedule.save_best and step < schedule.max_steps))


def passed_of(pace: Pace, passed: Pace) -> float:
    """Seconds of a forecast that are over already, of what is under way; none counts for more than is forecast."""
    pairs = zip(astuple(pace), astuple(passed), strict=True)
    return math.fsum(min(whole, part) for whole, part in pairs if whole is not None and part is not None)


def most_steps_within(seconds: float, schedule: Schedule, step: int, pace: Pace) -> int | None:
    """The largest ``max_steps`` with which the rest of the run, evaluations and saves included, takes at most so long.
    At least ``step``; None where the time of a step is not known."""
    if pace.step_seconds is None:
        return None
    fits, too_many = step, schedule.max_steps + 1
    while too_many - fits > 1:
        tried = (fits + too_many) // 2
        rest = forecast(replace(schedule, max_steps=tried), step, pace)
        assert rest is not None
        fits, too_many = (tried, too_many) if rest.seconds <= seconds else (fits, tried)
    return fits


def recent_step_seconds(seconds: Sequence[float]) -> float | None:
    """A mean, for work that comes with every tenth step; none counts for over ten medians, for a single stall."""
    if not seconds:
        return None
    longest = _LONGEST * median(seconds)
    return math.fsum(min(one, longest) for one in seconds) / len(seconds)


def _occurrences(step: int, last: int, every: int | None, first: int) -> int:
    """Multiples of ``every`` in ``step + 1 .. last`` that are at least ``first``, and ``last`` itself."""
    if not every or step >= last or last < first:
        return 0
    return last // every - max(step, first - 1) // every + (last % every != 0)


LimitName = Literal["usd", "hours", "kwh"]


@dataclass(frozen=True)
class Earlier:
    """What a run had spent before this process, on rank 0; a killed process counts until its last heartbeat. ``joules``
    is over all ranks' meters, the cost at each process's own price; None where unknown. ``failures``: processes that
    ended neither as they should nor as they were asked to."""

    wall_seconds: float = 0.0
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    saves: int = 0
    save_seconds: float = 0.0
    joules: float | None = 0.0
    cost_usd: float | None = None
    failures: int = 0

    def cost_at(self, price_usd_per_hour: float | None) -> float | None:
        """What they cost; at this price where they state none; None where that is not known either."""
        return cost_usd(self.wall_seconds, price_usd_per_hour) if self.cost_usd is None else self.cost_usd


@dataclass(frozen=True)
class Spent:
    """What the processes of a run have spent, each from its start, at the price of what it occupies; None: unknown."""

    wall_seconds: float
    usd: float | None = None
    kwh: float | None = None

    def of(self, limit: LimitName) -> float | None:
        return self.wall_seconds / SECONDS_PER_HOUR if limit == "hours" else getattr(self, limit)


@dataclass(frozen=True)
class Limits:
    """What a run may spend, in wall time of its processes, money and energy; None: no limit."""

    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None

    def __post_init__(self) -> None:
        if not self.given():
            raise ValueError("a budget without a limit; give usd, hours or kwh")
        for name, value in self.given().items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value) and value > 0):
                raise ValueError(f"a budget of {value!r} {name}; write a positive number")

    def given(self) -> dict[LimitName, float]:
        return {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[misc]


@dataclass(frozen=True)
class Clearance:
    """The limit that comes first, and the seconds until then; negative where it has been passed."""

    limit: LimitName
    seconds: float


def clearance(
    limits: Limits, spent: Spent, price_usd_per_hour: float | None = None, watts: float | None = None
) -> Clearance | None:
    """The limit reached first: the least of ``(limit - spent) / rate``; None where of no limit both are known."""
    per_second = {
        "usd": (price_usd_per_hour or 0.0) / SECONDS_PER_HOUR,
        "hours": 1 / SECONDS_PER_HOUR,
        "kwh": (watts or 0.0) / JOULES_PER_KWH,
    }
    found = []
    for name, limit in limits.given().items():
        used, rate = spent.of(name), per_second[name]
        if used is not None and (rate > 0 or used >= limit):
            found.append(Clearance(name, (limit - used) / rate if rate > 0 else 0.0))
    return min(found, key=lambda one: one.seconds, default=None)
