"""What is still to come of a run that goes on, less what has passed of what it is doing.

A run as somebody sees it who looks on: where it is, what is to come, what it did last.

The account of a run that goes on: each look reads only what its records have grown by.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_efficient.accounting.account import build_account
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.run_records import RunReader, RunRecords
from hf_efficient.accounting.series import build_series
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.forecast import RECENT_STEPS, Forecast, Pace, Schedule, forecast, passed_of
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.records.account import RunAccount
from hf_efficient.records.series import RunSeries, StepSeries
from hf_efficient.records.steps import COARSE_PHASES, STEP_PHASES

_OF_A_STEP = {*STEP_PHASES, *COARSE_PHASES} - {"evaluation", "checkpointing"}


def rest_of(schedule: Schedule, step: int, pace: Pace, last: ProcessSpans) -> Forecast | None:
    """The forecast from the last sign of life on.

    The record of a step is written when its evaluation and its save are done, so that these are under way while the
    step still counts as one to come. After the training an evaluation may be under way, or done.

    Args:
        schedule: of the run.
        step: optimizer steps whose records are there.
        pace: as measured so far.
        last: the process that goes on.

    Returns:
        None where the time of a step is not known.
    """
    ended = _training_ended_at(last)
    if ended is not None and any(note["at_seconds"] > ended for note in last.notes.get("evaluation", ())):
        schedule = dataclasses.replace(schedule, evaluate_after=False)
    rest = forecast(schedule, step, pace)
    if rest is None or last.alive is None:
        return rest
    passed = Pace()
    if _is_training(last):
        passed = _of_a_step(last.alive["phase_seconds"])
    elif ended is not None and schedule.evaluate_after and last.alive["open_phase"] == "evaluation":
        passed = Pace(evaluation_seconds=last.alive["phase_seconds"]["evaluation"])
    return dataclasses.replace(rest, seconds=max(0.0, rest.seconds - passed_of(pace, passed)))


def _of_a_step(phases: Mapping[str, float]) -> Pace:
    step = math.fsum(seconds for name, seconds in phases.items() if name in _OF_A_STEP)
    return Pace(step, phases.get("evaluation"), phases.get("checkpointing"))


def _is_training(process: ProcessSpans) -> bool:
    return any(segment not in process.train_ends for segment in process.trains)


def _training_ended_at(process: ProcessSpans) -> float | None:
    """When the last ``train()`` call ended; None where one goes on, or none was made."""
    if _is_training(process) or not process.train_ends:
        return None
    return max(float(end["at_seconds"]) for end in process.train_ends.values())


SILENT_SECONDS = 10.0
"""A run that goes on gives a sign of life every second; after ten without one something is wrong."""

GONE_SECONDS = 60.0
"""After so long without a sign of life the run is taken to be over."""

State = Literal["running", "silent", "gone", "ended"]


@dataclass(frozen=True)
class RunView:
    """One look at a run.

    Attributes:
        account: of the run so far.
        state: ``running``; ``silent``: no sign of life for ``SILENT_SECONDS``; ``gone``: for ``GONE_SECONDS``;
            ``ended``: it said so itself.
        silent_seconds: since the last sign of life.
        step: optimizer steps done.
        max_steps: of the whole run; None where it did not tell.
        rest: of the training; None where it is over, or cannot be told.
        total_usd: what the run will have cost when the training is over; None where it is not known.
        losses: as they were logged, thinned, the last one last.
    """

    account: RunAccount
    state: State
    silent_seconds: float
    step: int
    max_steps: int | None
    rest: Forecast | None
    total_usd: float | None
    losses: list[float]


def view_of(
    account: RunAccount, steps: StepSeries, processes: Sequence[ProcessSpans], silent_seconds: float = 0.0
) -> RunView:
    """Put together what the records tell.

    Args:
        account: of the run so far.
        steps: the same run over its time.
        processes: the same run's processes on rank 0.
        silent_seconds: since the last sign of life, as the looker-on measures it.
    """
    last = processes[-1] if processes else None
    schedule = _schedule(last.facts.get("run", {})) if last is not None else None
    step = account.time.processes[-1].last_step or (steps.last_step[-1] if len(steps) else 0)
    state = _state(account, silent_seconds)
    rest = None
    if schedule is not None and last is not None and state in ("running", "silent"):
        rest = rest_of(schedule, step, _pace(account, steps, processes), last)
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


def _schedule(facts: Mapping[str, Any]) -> Schedule | None:
    known = {field.name: facts[field.name] for field in dataclasses.fields(Schedule) if field.name in facts}
    return Schedule(**known) if isinstance(known.get("max_steps"), int) else None


def _pace(account: RunAccount, steps: StepSeries, processes: Sequence[ProcessSpans]) -> Pace:
    evaluations = [one.seconds for one in account.evaluations if one.seconds is not None]
    saves = [note["seconds"] for process in processes for note in process.notes.get("save", ()) if "seconds" in note]
    return Pace(_recent(steps), _mean(evaluations), _mean(saves))


def _recent(steps: StepSeries) -> float | None:
    """The mean time of the last steps, as many buckets of them as hold ``RECENT_STEPS``, of the last call alone."""
    seconds, count = 0.0, 0
    for index in reversed(range(len(steps))):
        if count >= RECENT_STEPS or steps.segment[index] != steps.segment[-1]:
            break
        count += steps.steps[index]
        seconds += steps.steps[index] * steps.step_seconds_mean[index]
    return seconds / count if count else None


def _mean(seconds: Sequence[float]) -> float | None:
    return math.fsum(seconds) / len(seconds) if seconds else None


class RunFollower:
    """Gives at every look what ``account_of`` and ``series_of`` would.

    Attributes:
        processes: of rank 0, as the last look saw them.
    """

    def __init__(self, directory: Path) -> None:
        """Nothing is read yet.

        Args:
            directory: the ``efficiency`` folder of a run; it need not be there yet.
        """
        self.processes: Sequence[ProcessSpans] = []
        self._reader = RunReader(directory)

    def account(self) -> RunAccount:
        """The account of the records as they are now.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        return build_account(self._look())

    def account_and_series(self) -> tuple[RunAccount, RunSeries]:
        """Both, of the same records.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        records = self._look()
        account = build_account(records)
        return account, build_series(account, records)

    def _look(self) -> RunRecords:
        records = self._reader.look()
        self.processes = records.processes
        return records
