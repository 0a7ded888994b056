"""What a tuning is to improve, within which limits, and the figure of a configuration by which it is judged."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from hf_efficient.errors import SetupError
from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd
from hf_efficient.estimate.statistics import percentile
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.records.tuning import Gain, Rung, TrialRun
from hf_efficient.trials.knobs import KNOBS, Pauses

OBJECTIVES: Final = ("tokens_per_second", "usd_per_million_tokens", "peak_memory", "p95_step_seconds")
PRESETS: Final[Mapping[str, tuple[str, bool]]] = {
    "bulk": ("tokens_per_second", False),
    "interactive": ("p95_step_seconds", False),
    "mixed": ("tokens_per_second", True),
}
"""Names for an objective, and whether the p95 of a step may not grow."""

_SAME_P95 = 1.05  # times the recipe's own p95, which few steps know no better


@dataclass(frozen=True)
class Goal:
    """``tolerance``: by how much the loss at equal tokens may be higher, as a share; ``without``: knobs to leave."""

    objective: str = "tokens_per_second"
    keeps_p95: bool = False
    most_p95_seconds: float | None = None
    most_bytes: int | None = None
    tolerance: float = 0.02
    minutes: float = 20.0
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        known = [knob.name for knob in KNOBS]
        unknown = sorted(self.without - set(known))
        if unknown:
            raise SetupError(f"--without: {unknown[0]} is no knob. They are {', '.join(known)}.")
        if self.objective not in OBJECTIVES:
            raise SetupError(f"--objective: {self.objective} is unknown. Write {', '.join((*OBJECTIVES, *PRESETS))}.")
        limits = {"--p95-step-seconds": self.most_p95_seconds, "--max-memory": self.most_bytes}
        for flag, value in {"--minutes": self.minutes, **limits}.items():
            if value is not None and not value > 0:
                raise SetupError(f"{flag}: {value:g} is not above zero. Write a positive number.")
        if not 0 <= self.tolerance < 1:
            raise SetupError(f"--eval-tolerance: {100 * self.tolerance:g} is not from 0 to 100. Write 2 for 2%.")

    @property
    def saves(self) -> str:
        return "memory" if self.objective == "peak_memory" else "time"


def goal_of(objective: str, **more: Any) -> Goal:
    name, keeps = PRESETS.get(objective, (objective, False))
    return Goal(name, keeps_p95=keeps, **more)


class Wanted(msgspec.Struct, frozen=True):
    """Of a trial: so many steps and seconds after the warm-up, at least; the loss on ``rows`` rows after ``tokens``,
    or at the end for 0; a plan first; one evaluation and save. It ends after ``most_seconds`` in any case."""

    steps: int
    seconds: float
    most_seconds: float
    warm_up: int = 2
    tokens: int = 0
    rows: int = 16
    plan: bool = False
    pauses: bool = False
    most_bytes: int | None = None


@dataclass
class Configuration:
    """The recipe with some changes, and its trials; ``gain``: of the last change."""

    what: str
    changes: dict[str, Any]
    settings: Settings
    runs: list[TrialRun] = field(default_factory=list)
    gain: Gain | None = None

    @property
    def latest(self) -> TrialRun:
        return self.runs[-1]


def seconds_per_token(run: TrialRun, pause: float) -> float:
    """``pause``: of evaluations and saves, for each step."""
    return (sum(run.step_seconds) + pause * len(run.step_seconds)) / max(1, sum(run.step_tokens))


def figure(objective: str, run: TrialRun, pause: float) -> float:
    """Of one trial; less is better. Money follows time, on one machine."""
    if objective == "peak_memory":
        return float(run.peak_bytes or 0)
    if objective == "p95_step_seconds":
        return p95([run])
    return seconds_per_token(run, pause)


def p95(runs: Sequence[TrialRun]) -> float:
    found = percentile(sorted(one for run in runs for one in run.step_seconds), 0.95)
    assert found is not None
    return found


def rung_of(one: Configuration, pauses: Pauses, price: float | None) -> Rung:
    pause = pauses.per_step(one.settings)
    seconds = statistics.fmean(seconds_per_token(run, pause) for run in one.runs)
    steps = [second for run in one.runs for second in run.step_seconds]
    peaks = [run.peak_bytes for run in one.runs if run.peak_bytes is not None]
    mean = statistics.fmean(steps)
    return Rung(
        what=one.what,
        tokens_per_second=1 / seconds,
        p50_seconds=statistics.median(steps),
        p95_seconds=p95(one.runs),
        peak_bytes=max(peaks, default=None),
        usd_per_million_tokens=cost_per_million_tokens(cost_usd(seconds * 1_000_000, price), 1_000_000),
        pause_share=pause / (pause + mean),
        gain=one.gain,
        runs=len(one.runs),
    )


def over_limits(goal: Goal, run: TrialRun, own_p95: float) -> str:
    """Which limit a trial breaks, in words; empty where it breaks none."""
    limit = goal.most_p95_seconds if goal.most_p95_seconds is not None else math.inf
    limit = min(limit, own_p95 * _SAME_P95) if goal.keeps_p95 else limit
    if goal.most_bytes is not None and (run.peak_bytes or 0) > goal.most_bytes:
        return "memory"
    return "p95" if p95([run]) > limit else ""
