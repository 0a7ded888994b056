"""A run under way, as an onlooker sees it: where it is, what is to come, what it did last."""

import math
import statistics
from dataclasses import dataclass, replace
from typing import Literal

from hf_efficient.accounting.account import AccountedRun
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.forecast import RECENT_STEPS, Forecast, Pace, Schedule, forecast, passed_of
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.records.account import RunAccount
from hf_efficient.records.series import StepSeries
from hf_efficient.records.steps import COARSE_PHASES, STEP_PHASES

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
    last = processes[-1] if processes else None
    schedule = None if last is None else last.stated("run", Schedule)
    step = account.time.processes[-1].last_step or (steps.last_step[-1] if len(steps) else 0)
    state = _state(account, silent_seconds)
    rest = None
    if schedule is not None and last is not None and state in ("running", "silent"):
        evaluations = [one.seconds for one in account.evaluations if one.seconds is not None]
        saves = [note["seconds"] for one in processes for note in one.notes.get("save", ()) if "seconds" in note]
        of_each = (statistics.fmean(seconds) if seconds else None for seconds in (evaluations, saves))
        rest = _rest(schedule, step, Pace(_recent(steps), *of_each), last)
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
