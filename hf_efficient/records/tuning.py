"""What `hf-efficient tune` and `sweep` measure: short trainings of a recipe, each with something changed."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

TUNING_SCHEMA_VERSION = 2
"""Of ``tuning.json``, ``sweep.json`` and the journal."""

Verdict = Literal["accepted", "no_gain", "undecided", "worse_loss", "over_limit", "does_not_fit", "failed", "no_time"]
"""``no_gain``: none outside the noise; ``undecided``: time or rounds ended first; ``over_limit``: of memory or p95."""


@dataclass(frozen=True)
class Prediction:
    """Of one remedy of the diagnosis: what it changes, and the share of the loop's time that it should save for the
    same tokens; None: not known."""

    rule: str
    changes: dict[str, Any]
    saving: float | None


@dataclass(frozen=True)
class TrialRun:
    """One short training in a process of its own. Lists hold an entry per step after the warm-up. ``step_tokens``,
    ``step_positions``: without padding, and with it. ``row_tokens``: mean of a row, without padding. ``loss``: mean
    over the target tokens of a few rows that are the same in every trial, after ``loss_tokens``. ``peak_bytes``: of the
    CUDA device's tensors, or of the process. ``model_share``: forward and backward, of the loop's time.
    ``evaluation_seconds``, ``save_seconds``: of one, timed after the training; None: not asked for, or there is none.
    ``steps``: of the whole run, where the recipe says so. ``wall_seconds``: of the whole process. Of several
    ``processes``, tokens and price are of all, seconds of the slowest, all else of rank 0."""

    step_seconds: list[float]
    step_tokens: list[int]
    step_positions: list[int]
    row_tokens: float
    device: str
    fast_bfloat16: bool
    weights: str
    loss: float | None = None
    loss_tokens: int = 0
    peak_bytes: int | None = None
    model_share: float = 1.0
    data_wait_share: float = 0.0
    logging_share: float = 0.0
    mfu: float | None = None
    evaluation_seconds: float | None = None
    save_seconds: float | None = None
    steps: int | None = None
    price_usd_per_hour: float | None = None
    predictions: list[Prediction] = field(default_factory=list)
    wall_seconds: float = 0.0
    processes: int = 1

    @property
    def padding_share(self) -> float:
        return 1 - sum(self.step_tokens) / max(1, sum(self.step_positions))


@dataclass(frozen=True)
class Gain:
    """How many times the figure of the objective improved, with the interval that holds it; None: computed from one
    measurement, or a peak, which has none."""

    ratio: float
    low: float | None
    high: float | None
    how: str


@dataclass(frozen=True)
class TriedChange:
    """One candidate. ``predicted``: the ratio that the diagnosis, or arithmetic, predicted; ``promised``: what others
    claim, with the source; ``loss_ratio``: its loss over the recipe's before it, at equal tokens."""

    knob: str
    what: str
    changes: dict[str, Any]
    verdict: Verdict
    why: str = ""
    costs: str = ""
    promised: str = ""
    predicted: float | None = None
    gain: Gain | None = None
    loss_ratio: float | None = None
    rounds: int = 0


@dataclass(frozen=True)
class Rung:
    """The recipe with the changes accepted so far. Rates include its evaluations and saves, timed once."""

    what: str
    tokens_per_second: float
    p50_seconds: float
    p95_seconds: float
    peak_bytes: int | None
    usd_per_million_tokens: float | None
    pause_share: float
    gain: Gain | None = None
    runs: int = 1


@dataclass(frozen=True)
class Tuning:
    """What became of a recipe. ``total``: tuned beside original, in runs of their own."""

    schema_version: int
    hf_efficient_version: str
    recipe: str
    objective: str
    started_at: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    ladder: list[Rung]
    tried: list[TriedChange]
    changes: dict[str, Any]
    spent_seconds: float
    total: Gain | None = None
    notes: list[str] = field(default_factory=list)


LEAST_DOUBLING = 1.1  # times the tokens/s: the knee is the last value on the way up whose doubling gives that


@dataclass
class SweptPoint:
    """One combination of values, by dotted key. Rates and seconds are over the steps of all its trials; ``of_trials``:
    tokens/s of each. ``rows``: of an optimizer step. ``gain_per_doubling``: of tokens/s, from the value of the first
    key before it."""

    name: str
    values: dict[str, int]
    rows: int = 0
    verdict: Literal["measured", "does_not_fit", "failed", "no_time"] = "no_time"
    why: str = ""
    steps: int = 0
    tokens_per_second: float = 0.0
    of_trials: list[float] = field(default_factory=list)
    p50_seconds: float = 0.0
    p95_seconds: float = 0.0
    p99_seconds: float = 0.0
    peak_bytes: int | None = None
    mfu: float | None = None
    gain_per_doubling: float | None = None
    is_knee: bool = False


def named_values(values: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values)


def curves(points: Iterable[SweptPoint]) -> dict[str, list[SweptPoint]]:
    """The measured points along the first key, by the values of the others."""
    found: dict[str, list[SweptPoint]] = {}
    for one in points:
        if one.steps:
            found.setdefault(named_values([*one.values.items()][1:]), []).append(one)
    return found


def unmeasured_beyond(points: Iterable[SweptPoint], one: SweptPoint) -> list[str]:
    """The points of its curve that were to follow it, where none of them was measured."""
    (_, value), *others = one.values.items()
    beyond = [two for two in points if [*two.values.items()][1:] == others and next(iter(two.values.values())) > value]
    return [] if any(two.steps for two in beyond) else [two.name for two in beyond]


@dataclass(frozen=True)
class Sweep:
    """A recipe at several values. ``answer``: place of the point of most tokens/s whose p95 is within the limit; None:
    there is none, or no limit was named."""

    schema_version: int
    hf_efficient_version: str
    recipe: str
    environment: dict[str, Any]
    settings: dict[str, Any]
    points: list[SweptPoint]
    spent_seconds: float
    answer: int | None
    notes: list[str]
