"""A run in a few figures: under way, as an onlooker sees it; those that stand first for a run, and how those of several
runs differ; its phases by part."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hf_efficient.accounting.account import AccountedRun
from hf_efficient.accounting.money import durations_of
from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.accounting.steps import Column, StepColumns, columns_of
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.forecast import RECENT_STEPS, Forecast, Pace, Schedule, forecast, passed_of
from hf_efficient.estimate.significance import Steps
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.estimate.throughput import scaling_efficiency
from hf_efficient.facts.tables import key_table
from hf_efficient.records.account import RunAccount, RunSeries, StepSeries
from hf_efficient.records.steps import CLOSING_PHASES, COARSE_PHASES, STARTUP_PHASES, STEP_PHASES

SILENT_SECONDS = 10.0
"""A run under way writes a heartbeat every second; after ten without one something is wrong."""

GONE_SECONDS = 60.0
"""After so long without a heartbeat the run is taken to be over."""

State = Literal["running", "silent", "gone", "ended"]

_OF_A_STEP = {*STEP_PHASES, *COARSE_PHASES} - {"evaluation", "checkpointing"}


@dataclass(frozen=True)
class RunView:
    """One look at a run; ``silent``: no heartbeat for ``SILENT_SECONDS``; ``gone``: for ``GONE_SECONDS``. The rest is
    that of the training, None where it is over or unknown; losses are as logged, thinned."""

    account: RunAccount
    state: State
    silent_seconds: float
    step: int
    max_steps: int | None
    rest: Forecast | None
    total_usd: float | None
    losses: list[float]


def view_of(run: AccountedRun, silent_seconds: float = 0.0) -> RunView:
    """What the records say of a run whose last heartbeat was so long ago, as the onlooker measures it."""
    account, steps, processes = run.account, run.series.steps, run.records.processes
    schedule = processes[-1].stated("run", Schedule)
    step = account.time.processes[-1].last_step or (steps.last_step[-1] if len(steps) else 0)
    state = _state(account, silent_seconds)
    rest = None
    if schedule is not None and state in ("running", "silent"):
        durations = (durations_of(processes, kind) for kind in ("evaluation", "save"))
        of_each = (statistics.fmean(seconds) if seconds else None for seconds in durations)
        rest = _rest(schedule, step, Pace(_recent(steps), *of_each), processes[-1])
    price = account.money.price_usd_per_hour
    return RunView(
        account=account,
        state=state,
        silent_seconds=silent_seconds,
        step=step,
        max_steps=None if schedule is None else schedule.max_steps,
        rest=rest,
        total_usd=None if rest is None else sum_if_known([account.money.cost_usd, cost_usd(rest.seconds, price)]),
        losses=[loss for loss in steps.loss if loss is not None],
    )


def _state(account: RunAccount, silent_seconds: float) -> State:
    if account.ended != "died":
        return "ended"
    if silent_seconds < SILENT_SECONDS:
        return "running"
    return "silent" if silent_seconds < GONE_SECONDS else "gone"


def _recent(steps: StepSeries) -> float | None:
    """The mean time of the last steps, as many buckets of them as hold ``RECENT_STEPS``, of the last call alone."""
    seconds, count = 0.0, 0
    for index in reversed(range(len(steps))):
        if count >= RECENT_STEPS or steps.segment[index] != steps.segment[-1]:
            break
        count += steps.steps[index]
        seconds += steps.steps[index] * steps.step_seconds_mean[index]
    return seconds / count if count else None


def _rest(schedule: Schedule, step: int, pace: Pace, last: ProcessSpans) -> Forecast | None:
    """The forecast from the last heartbeat on, less what has passed of an evaluation or save under way."""
    is_training = any(segment not in last.train_ends for segment in last.trains)
    ended = None if is_training else max((end.at_seconds for end in last.train_ends.values()), default=None)
    if ended is not None and any(note["at_seconds"] > ended for note in last.notes.get("evaluation", ())):
        schedule = replace(schedule, evaluate_after=False)
    rest = forecast(schedule, step, pace)
    if rest is None or last.alive is None:
        return rest
    passed, phases = Pace(), last.alive.phase_seconds
    if is_training:
        of_step = math.fsum(seconds for name, seconds in phases.items() if name in _OF_A_STEP)
        passed = Pace(of_step, phases.get("evaluation"), phases.get("checkpointing"))
    elif ended is not None and schedule.evaluate_after and last.alive.open_phase == "evaluation":
        passed = Pace(evaluation_seconds=phases["evaluation"])
    return replace(rest, seconds=max(0.0, rest.seconds - passed_of(pace, passed)))


_APART = ("evaluation", "checkpointing")
GROUPS: dict[str, tuple[str, ...]] = {
    "before training": tuple(name for name in STARTUP_PHASES if name != "compilation"),
    "training": tuple(name for name in ("compilation", *STEP_PHASES, *COARSE_PHASES) if name not in _APART),
    "evaluations and checkpoints": _APART,
    "after training": CLOSING_PHASES,
    "unattributed": ("unattributed",),
}
"""Every phase, by the part of a run that it belongs to."""


@dataclass(frozen=True)
class PhaseGroup:
    """One part of a run, of ``GROUPS``."""

    name: str
    total: float
    phases: dict[str, float]


def grouped(by_phase: Mapping[str, float]) -> list[PhaseGroup]:
    """Seconds, dollars or joules by phase, put together; parts in which nothing occurred are left out."""
    parts = {part: {name: by_phase[name] for name in names if name in by_phase} for part, names in GROUPS.items()}
    return [PhaseGroup(part, math.fsum(held.values()), held) for part, held in parts.items() if held]


BETTER = {name: way for name, (_, _, *ways) in key_table("report_words")["compared"].items() for way in ways}
"""Which way a figure is better; those that are not here are neither."""

TOTALS = ("wall_seconds", "training_seconds", "cost_usd", "energy_joules", "co2e_grams")
"""What grows with the steps: between runs of different lengths neither is better."""


def headline(account: RunAccount, series: RunSeries | None = None) -> dict[str, float | None]:
    """The figures by name; None where unknown. ``loss_before`` precedes the first step."""
    wall, memory, tokens = account.time.wall_seconds, account.memory, account.tokens
    losses = [each for each in account.evaluations if each.metrics.get("loss") is not None]
    logged = [loss for loss in series.steps.loss if loss is not None] if series else []
    return {
        "wall_seconds": wall,
        "training_seconds": account.time.training_seconds,
        "steps": account.steps.count,
        "non_padding_tokens": tokens.non_padding,
        "non_padding_tokens_per_second": tokens.non_padding_tokens_per_second,
        "padding_share": tokens.padding_share,
        "step_p50_seconds": account.steps.p50_seconds,
        "step_p95_seconds": account.steps.p95_seconds,
        "mfu": account.work.mfu,
        "hfu": account.work.hfu,
        "device_peak_allocated_bytes": memory.device_peak_allocated_bytes,
        "peak_rss_bytes": memory.peak_rss_bytes,
        "cost_usd": account.money.cost_usd,
        "usd_per_million_non_padding_tokens": account.money.usd_per_million_non_padding_tokens,
        "energy_joules": account.energy.joules,
        "co2e_grams": account.energy.co2e_grams,
        "loss_before": losses[0].metrics["loss"] if losses and losses[0].step == 0 else None,
        "loss_after": losses[-1].metrics["loss"] if losses and losses[-1].step > 0 else None,
        "training_loss": logged[-1] if logged else None,
        "unattributed_share": account.time.unattributed_seconds / wall if wall > 0 else None,
    }


def scaling_of(accounts: Sequence[RunAccount]) -> list[float | None]:
    """Scaling efficiency of each run against the first, in non-padding tokens of all ranks."""
    of_each = [(one.tokens.non_padding_tokens_per_second, max(1, len(one.ranks))) for one in accounts]
    return [scaling_efficiency(*one, *of_each[0]) for one in of_each]


THROUGHPUT = "non_padding_tokens_per_second"
TRAINING_LOSS, EVALUATION_LOSS = "training_loss_at_equal_tokens", "evaluation_loss_at_equal_tokens"
Places = npt.NDArray[np.intp]
_LAST_PART = 0.2
"""Of the tokens that all trained on, over which the training loss is averaged."""


ComparedRun = Any
"""The ``RunData`` of a run, which ``reporting/`` reads; ``steps`` by rank, none where only ``run.json`` was kept."""


class Until(NamedTuple):
    """Tokens on which all runs trained, and after which all runs that evaluate had evaluated."""

    trained: float
    evaluated: float


@dataclass(frozen=True)
class ComparedSteps:
    """A run and its optimizer steps, each once: of a step that a resumed run did again, the last."""

    held: ComparedRun

    @cached_property
    def rows(self) -> StepColumns:
        columns = self.held.steps.get(0) or columns_of([])
        _, last = np.unique(columns.step[::-1], return_index=True)
        return columns[np.sort(len(columns) - 1 - last)]

    @cached_property
    def tokens(self) -> Column:
        """Without padding, of all ranks; NaN where unknown."""
        ranks = list(self.held.steps.values())
        alike = all(np.array_equal(one.step, ranks[0].step) for one in ranks)
        if len(ranks) < 2 or not alike or len(self.rows) != len(ranks[0]):
            return self.rows.non_padding * max(1, len(ranks))
        found: Column = np.sum([one.non_padding for one in ranks], axis=0)
        return found

    @cached_property
    def ends(self) -> Column:
        """Tokens trained on by the end of each step."""
        earlier = (self.held.account.tokens.non_padding or 0) - float(np.nansum(self.tokens))
        is_cut = len(self.rows) and self.rows.step[0] > 1  # of a long run only the last steps are read
        found: Column = (max(0.0, earlier) if is_cut else 0.0) + np.cumsum(self.tokens)
        return found

    @cached_property
    def measured(self) -> Places:
        """The steps after warm-up."""
        found: Places = np.flatnonzero(self.rows.steady & (self.rows.step_seconds > 0))
        return found

    def steady(self, places: Places) -> Steps:
        return Steps(self.rows.step_seconds[places], self.tokens[places])

    def losses(self, until: float) -> tuple[Column, Steps] | None:
        """The logged losses of the last part before so many tokens: the steps, and losses with the tokens of each."""
        places = np.flatnonzero(np.isfinite(self.rows.loss))
        if not len(places):
            return None
        ends = self.ends[places]
        weights = np.diff(ends, prepend=0.0)
        kept = (ends > (1 - _LAST_PART) * until) & (ends <= until) & (weights > 0)
        loss = self.rows.loss[places][kept]
        if not len(loss) or (loss <= 0).any():
            return None
        return self.rows.step[places][kept], Steps(loss * weights[kept], weights[kept])

    @cached_property
    def evaluated(self) -> list[tuple[float, float]]:
        """Tokens and loss of each evaluation after the first step."""
        found = []
        for one in self.held.account.evaluations:
            place, loss = int(np.searchsorted(self.rows.step, one.step)), one.metrics.get("loss")
            if loss is not None and one.step > 0 and place < len(self.rows):
                found.append((float(self.ends[place]), loss))
        return found

    def figures(self, until: Until) -> dict[str, float | None]:
        """Those of its headline, its throughput by the steps after warm-up, and the losses at equal tokens."""
        found = headline(self.held.account, self.held.series)
        steady = self.steady(self.measured)
        if len(steady) and (self.tokens[self.measured] > 0).all():  # NaN is not greater
            found[THROUGHPUT] = 1 / mean_rate(steady)
        points, trained = self.evaluated, self.losses(until.trained)
        is_there = bool(points) and points[0][0] <= until.evaluated
        tokens, losses = [at for at, _ in points], [loss for _, loss in points]
        found[EVALUATION_LOSS] = float(np.interp(until.evaluated, tokens, losses)) if is_there else None
        found[TRAINING_LOSS] = None if trained is None else mean_rate(trained[1])
        return found


def until_of(runs: Sequence[ComparedSteps]) -> Until:
    trained = min(float(run.ends[-1]) if len(run.rows) else math.nan for run in runs)
    return Until(trained, min((run.evaluated[-1][0] for run in runs if run.evaluated), default=0.0))


def mean_rate(steps: Steps) -> float:
    assert steps.per is not None
    return float(steps.seconds.sum() / steps.per.sum())
