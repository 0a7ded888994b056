"""The run under way: sums over its steps, what it has spent and will have spent, and the figures that join its logs."""

import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.cost import JOULES_PER_KWH, cost_usd
from hf_efficient.estimate.forecast import RECENT_STEPS, Earlier, Pace, Schedule, Spent, forecast, recent_step_seconds
from hf_efficient.estimate.statistics import percentile, warm_up_count
from hf_efficient.estimate.throughput import utilization
from hf_efficient.records.steps import StepRecord

PREFIX = "efficiency/"
WHOLE_PREFIX = f"{PREFIX}run/"
"""Of the closing summary, so that its sums are no last point of a curve."""

_FEWEST_STEADY, _STEADY_SHARE = 5, 0.25


@dataclass(frozen=True)
class WindowSums:
    """Sums over some steps of one rank, without evaluation and checkpointing; a count is None where a step lacks it."""

    wall_seconds: float
    training_seconds: float
    data_wait_seconds: float
    unattributed_seconds: float
    steps: int
    processed: int | None
    non_padding: int | None
    target: int | None
    model_flops: int | None
    hardware_flops: int | None
    peak_allocated_bytes: int | None
    step_seconds: Sequence[float]


_SUMS = [one.name for one in fields(WindowSums)][:-2]
_NOTHING = np.zeros(len(_SUMS))
"""The sums of times and counts; NaN: not known of a step."""
_STEPS = _SUMS.index("steps")


@dataclass
class Durations:
    """Things of one kind that happened after steps of the run, and how long they took together."""

    count: int = 0
    seconds: float = 0.0
    _step: int | None = None

    def add(self, step: int, seconds: float) -> None:
        self.count += step != self._step
        self.seconds += seconds
        self._step = step

    @property
    def mean_seconds(self) -> float | None:
        return self.seconds / self.count if self.count else None


class RunningFigures:
    """What a ``train()`` call has come to on this rank, with the run's earlier evaluations and saves."""

    def __init__(self, earlier: Earlier | None = None, catch_up: Callable[[], object] = lambda: None) -> None:
        """``catch_up`` adds the steps that have ended meanwhile; called before any figure is read."""
        self.earlier = earlier or Earlier()
        self.evaluations = Durations(self.earlier.evaluations, self.earlier.evaluation_seconds)
        self.saves = Durations(self.earlier.saves, self.earlier.save_seconds)
        self._catch_up, self._lock = catch_up, threading.Lock()
        self._before = self._since = _NOTHING  # the last window's end
        self._step_seconds = array("d")
        self._recent: deque[npt.NDArray[np.float64]] = deque(maxlen=RECENT_STEPS)
        self._peak: int | None = None
        self._window_peak: int | None = None

    @property
    def steps(self) -> int:
        self._catch_up()
        return self.known

    @property
    def known(self) -> int:
        """Steps as of a second ago at most."""
        return len(self._step_seconds)

    def add(self, record: StepRecord) -> None:
        row = _row(record)
        with self._lock:
            self._since = self._since + row
            self._step_seconds.append(row[1])
            self._recent.append(row)
            self._window_peak = _larger_peak(self._window_peak, record)
            self._peak = _larger_peak(self._peak, record)

    def whole(self) -> WindowSums:
        self._catch_up()
        with self._lock:
            return _window(self._before + self._since, self._step_seconds[:], self._peak)

    def take_window(self, under_way: StepRecord | None) -> WindowSums:
        """The steps since the last call; ``under_way``, whose update is done, counts as far as it has come."""
        self._catch_up()
        with self._lock:
            window, peak, ahead = self._since, self._window_peak, _NOTHING
            times = self._step_seconds[int(self._before[_STEPS]) :]
            if under_way is not None:
                ahead, peak = _row(under_way), _larger_peak(peak, under_way)
                times.append(ahead[1])
            window = window + ahead
            self._before, self._since, self._window_peak = self._before + window, -np.nan_to_num(ahead), None
            return _window(window, times, peak)

    def step_seconds(self) -> float | None:
        return recent_step_seconds([row[1] for row in self._steady()])

    def is_steady(self) -> bool:
        """Whether a forecast can stand on the last steps: enough of them, whose halves take about the same."""
        times = [row[1] for row in self._steady()]
        half = len(times) // 2
        if len(times) < _FEWEST_STEADY:
            return False
        before, after = recent_step_seconds(times[:half]), recent_step_seconds(times[half:])
        return before is not None and after is not None and abs(after - before) <= _STEADY_SHARE * max(after, before)

    def recent(self) -> WindowSums:
        """The last steps, without those of the warm-up."""
        return _window(sum(self._steady(), start=_NOTHING), (), None)

    def _steady(self) -> list[npt.NDArray[np.float64]]:
        """The last steps, as of a second ago at most; with the warm-up's in a call that has not done many more."""
        with self._lock:
            recent, steps = list(self._recent), len(self._step_seconds)
        return recent[max(0, warm_up_count(steps) - (steps - len(recent))) :]


def _row(record: StepRecord) -> npt.NDArray[np.float64]:
    phases, tokens, work = record.phase_seconds, record.tokens, record.work
    training = record.wall_seconds - phases.get("evaluation", 0.0) - phases.get("checkpointing", 0.0)
    unattributed = record.wall_seconds - sum(phases.values())
    flops = (None, None) if work is None else (work.model_flops, work.hardware_flops)
    times = (record.wall_seconds, training, phases.get("data_wait", 0.0), unattributed)
    return np.array([*times, 1, tokens.processed, tokens.non_padding, tokens.target, *flops], dtype=np.float64)


def _larger_peak(peak: int | None, record: StepRecord) -> int | None:
    return peak if record.memory is None else max(peak or 0, record.memory.peak_allocated_bytes)


def _window(sums: npt.NDArray[np.float64], times: Sequence[float], peak: int | None) -> WindowSums:
    found: dict[str, Any] = dict(zip(_SUMS, sums.tolist(), strict=True))
    found |= {name: None if math.isnan(found[name]) else int(found[name]) for name in _SUMS[_STEPS:]}
    return WindowSums(**found, peak_allocated_bytes=peak, step_seconds=times)


@dataclass(frozen=True)
class Outlook:
    """What is still to come of a training, and the run's sums at its end, without the final save and merging.
    ``lower_bound``: something of unknown duration is left out."""

    seconds_left: float
    total: Spent
    lower_bound: bool


class LiveRun:
    """The figures of a ``Timeline`` while ``train()`` runs; no ``schedule`` until training begins."""

    def __init__(self, run: Any, figures: RunningFigures) -> None:
        self.figures = figures
        self.schedule: Schedule | None = None
        self.world_size = 1
        self.elsewhere_joules = 0.0
        self._run = run
        self._step_seconds: float | None = None
        self._paced_steps = 0
        self._opened_seconds, self._opened_joules = run.lived_seconds(), self._joules() or 0.0

    @property
    def price_usd_per_hour(self) -> float | None:
        return self._fact("price", "price_usd_per_hour")

    @property
    def peak_flops_per_second(self) -> float | None:
        return self._fact("work", "peak_flops_per_second")

    @property
    def startup_seconds(self) -> float:
        """From where the run took this process over to where its training began; 0 where nobody stated it."""
        return self._fact("run", "startup_seconds") or 0.0

    def spent(self) -> Spent:
        joules, earlier = self._joules(), self.figures.earlier.joules
        return self._spent(
            self.figures.earlier.wall_seconds + self._run.lived_seconds(),
            None if joules is None or earlier is None else joules + earlier,
        )

    def outlook(self, step: int, *, another_start: bool = False) -> Outlook | None:
        """What is to come after ``step`` done steps; None while unknown; another start takes as long as the last."""
        if self.schedule is None:
            return None
        now = self.spent()
        rest = forecast(self.schedule, step, self.pace())
        if rest is None:
            return None
        watts, left = self.watts(), rest.seconds + another_start * self.startup_seconds
        joules = None if now.kwh is None or watts is None else now.kwh * JOULES_PER_KWH + watts * left
        return Outlook(left, self._spent(now.wall_seconds + left, joules), rest.lower_bound)

    def pace(self) -> Pace:
        """How long things take; the time of a step is looked at where more steps are known than last time."""
        known = self.figures.known
        if known != self._paced_steps:
            self._step_seconds, self._paced_steps = self.figures.step_seconds(), known
        return Pace(self._step_seconds, self.figures.evaluations.mean_seconds, self.figures.saves.mean_seconds)

    def watts(self) -> float | None:
        """Mean power since ``train()`` was called; None without a meter."""
        joules = self._joules()
        seconds = self._run.lived_seconds() - self._opened_seconds
        return None if joules is None or seconds <= 0 else (joules - self._opened_joules) / seconds

    def _fact(self, topic: str, name: str) -> float | None:
        value = self._run.facts.get(topic, {}).get(name)
        return None if value is None else float(value)

    def _spent(self, wall_seconds: float, joules: float | None) -> Spent:
        """Each process is paid at its own price, as in the account: a run may resume on another machine."""
        earlier, price = self.figures.earlier, self.price_usd_per_hour
        before, own = earlier.cost_at(price), cost_usd(max(0.0, wall_seconds - earlier.wall_seconds), price)
        usd = None if before is None or own is None else before + own
        return Spent(wall_seconds, usd, None if joules is None else joules / JOULES_PER_KWH)

    def _joules(self) -> float | None:
        system = self._run.system
        joules = None if system is None else system.energy_joules
        return None if joules is None else joules + self.elsewhere_joules


def log_figures(window: WindowSums, live: LiveRun, outlook: Outlook | None, prefix: str = PREFIX) -> dict[str, float]:
    """The figures of some steps and of the run so far, by the keys of docs/metrics.md; unknown ones are left out."""
    spent, seconds = live.spent(), window.training_seconds
    ordered, computed, unpadded = sorted(window.step_seconds), window.processed or 0, window.non_padding
    peak = live.peak_flops_per_second
    figures = {
        "step_seconds_p50": percentile(ordered, 0.5),
        "step_seconds_p95": percentile(ordered, 0.95),
        "non_padding_tokens_per_second": _ratio(window.non_padding, seconds, live.world_size),
        "padding_share": _ratio(None if unpadded is None else computed - unpadded, computed),
        "mfu": utilization(window.model_flops, seconds, peak).share,
        "hfu": utilization(window.hardware_flops, seconds, peak).share,
        "data_wait_share": _ratio(window.data_wait_seconds, seconds),
        "unattributed_share": _ratio(window.unattributed_seconds, window.wall_seconds),
        "peak_allocated_bytes": window.peak_allocated_bytes,
        "wall_seconds": spent.wall_seconds,
        "cost_usd": spent.usd,
        "energy_kwh": spent.kwh or None,  # 0 after a single reading of the meters
    }
    if outlook is not None:
        figures["forecast_wall_seconds"] = outlook.total.wall_seconds
        figures["forecast_cost_usd"] = outlook.total.usd
    return {prefix + name: float(value) for name, value in figures.items() if value is not None}


def _ratio(part: float | None, whole: float, times: int = 1) -> float | None:
    return None if part is None or whole <= 0 else times * part / whole
