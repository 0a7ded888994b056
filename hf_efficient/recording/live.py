"""The run under way: sums over its steps, what it has spent and will have spent, and the figures that join its logs."""

import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.energy import JOULES_PER_KWH
from hf_efficient.estimate.forecast import RECENT_STEPS, Earlier, Pace, Schedule, Spent, forecast, recent_step_seconds
from hf_efficient.estimate.statistics import percentile, warm_up_count
from hf_efficient.estimate.throughput import utilization
from hf_efficient.records.steps import StepRecord

PREFIX = "efficiency/"
WHOLE_PREFIX = f"{PREFIX}run/"
"""Of the closing summary, so that its sums are no last point of a curve."""

_FEWEST_STEADY, _STEADY_SHARE = 5, 0.25
_TIMES = ("wall_seconds", "training_seconds", "data_wait_seconds", "unattributed_seconds")
_COUNTS = ("processed", "non_padding", "target", "model_flops", "hardware_flops")
_KNOWN, _UNKNOWN = 1 + len(_TIMES), 1 + len(_TIMES) + len(_COUNTS)
_NOTHING = np.zeros(_UNKNOWN + len(_COUNTS))
"""Steps, times, counts, and for each count of how many steps it is not known."""


@dataclass(frozen=True)
class WindowSums:
    """Sums over some steps of one rank, without evaluation and checkpointing; a count is None where a step lacks it."""

    steps: int
    wall_seconds: float
    training_seconds: float
    data_wait_seconds: float
    unattributed_seconds: float
    processed: int | None
    non_padding: int | None
    target: int | None
    model_flops: int | None
    hardware_flops: int | None
    peak_allocated_bytes: int | None
    step_seconds: Sequence[float]


@dataclass(frozen=True)
class RecentSpeed:
    """Of the last steps, without those of the warm-up, per second of training time; None where not known."""

    step_seconds: float | None
    non_padding_tokens_per_second: float | None
    model_flops_per_second: float | None


class Durations:
    """Things of one kind that happened after steps of the run, and how long they took together."""

    def __init__(self, count: int = 0, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds
        self._step: int | None = None

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
        self._sums = self._mark = _NOTHING
        self._step_seconds = array("d")
        self._recent: deque[tuple[float, int | None, int | None]] = deque(maxlen=RECENT_STEPS)
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
            self._sums = self._sums + row
            self._step_seconds.append(row[2])
            flops = None if record.work is None else record.work.model_flops
            self._recent.append((row[2], record.tokens.non_padding, flops))
            self._window_peak = _larger_peak(self._window_peak, record)
            self._peak = _larger_peak(self._peak, record)

    def whole(self) -> WindowSums:
        self._catch_up()
        with self._lock:
            return _window(self._sums, self._step_seconds[:], self._peak)

    def take_window(self, under_way: StepRecord | None) -> WindowSums:
        """The steps since the last call; ``under_way``, whose update is done, counts as far as it has come."""
        self._catch_up()
        with self._lock:
            now, peak = self._sums, self._window_peak
            times = self._step_seconds[int(self._mark[0]) :]
            if under_way is not None:
                row = _row(under_way)
                now, peak = now + row, _larger_peak(peak, under_way)
                times.append(row[2])
            window = _window(now - self._mark, times, peak)
            self._mark, self._window_peak = now, None
            return window

    def step_seconds(self) -> float | None:
        return recent_step_seconds([seconds for seconds, _, _ in self._steady()])

    def is_steady(self) -> bool:
        """Whether a forecast can stand on the last steps: enough of them, whose halves take about the same."""
        times = [seconds for seconds, _, _ in self._steady()]
        half = len(times) // 2
        if len(times) < _FEWEST_STEADY:
            return False
        before, after = recent_step_seconds(times[:half]), recent_step_seconds(times[half:])
        return before is not None and after is not None and abs(after - before) <= _STEADY_SHARE * max(after, before)

    def rates(self) -> RecentSpeed:
        steady = self._steady()
        seconds = sum(one for one, _, _ in steady)
        if seconds <= 0:
            return RecentSpeed(None, None, None)
        tokens = [count for _, count, _ in steady if count is not None]
        flops = [count for _, _, count in steady if count is not None]
        return RecentSpeed(
            seconds / len(steady),
            sum(tokens) / seconds if len(tokens) == len(steady) else None,
            sum(flops) / seconds if len(flops) == len(steady) else None,
        )

    def _steady(self) -> list[tuple[float, int | None, int | None]]:
        """The last steps, as of a second ago at most; with the warm-up's in a call that has not done many more."""
        with self._lock:
            recent, steps = list(self._recent), len(self._step_seconds)
        return recent[max(0, warm_up_count(steps) - (steps - len(recent))) :]


def _row(record: StepRecord) -> npt.NDArray[np.float64]:
    phases, tokens, work = record.phase_seconds, record.tokens, record.work
    training = record.wall_seconds - phases.get("evaluation", 0.0) - phases.get("checkpointing", 0.0)
    unattributed = record.wall_seconds - sum(phases.values())
    flops = (None, None) if work is None else (work.model_flops, work.hardware_flops)
    counts = (tokens.processed, tokens.non_padding, tokens.target, *flops)
    times = (1, record.wall_seconds, training, phases.get("data_wait", 0.0), unattributed)
    return np.array([*times, *(count or 0 for count in counts), *(count is None for count in counts)], dtype=np.float64)


def _larger_peak(peak: int | None, record: StepRecord) -> int | None:
    return peak if record.memory is None else max(peak or 0, record.memory.peak_allocated_bytes)


def _window(sums: npt.NDArray[np.float64], times: Sequence[float], peak: int | None) -> WindowSums:
    values = sums.tolist()
    counts = zip(_COUNTS, values[_KNOWN:_UNKNOWN], values[_UNKNOWN:], strict=True)
    sums_by_name: dict[str, Any] = {name: None if unknown else int(count) for name, count, unknown in counts}
    return WindowSums(
        steps=int(values[0]),
        **dict(zip(_TIMES, values[1:_KNOWN], strict=True)),
        **sums_by_name,
        peak_allocated_bytes=peak,
        step_seconds=times,
    )


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
    """The figures of some steps and of the run so far, by the key that they are logged under.

    ==================================== ===== ========= =======================================================
    key, after the prefix                unit  over      what
    ==================================== ===== ========= =======================================================
    step_seconds_p50, step_seconds_p95   s     window    an optimizer step, without its evaluation and saving
    non_padding_tokens_per_second        1/s   window    tokens that are no padding, over the same time; of all
                                                         ranks, taken as this rank's times their number
    padding_share                        0..1  window    padding among the positions that were computed
    mfu, hfu                             0..1  window    FLOPs of the model, of the hardware, over the peak
    data_wait_share                      0..1  window    of that time, waiting for data
    unattributed_share                   0..1  window    of the steps' wall time, what no phase claimed
    peak_allocated_bytes                 B     window    tensors on this rank's device
    wall_seconds                         s     run       time of its processes, from their start
    cost_usd                             USD   run       that time at the price of what the run occupies
    energy_kwh                           kWh   run       energy, once a meter has been read twice
    forecast_wall_seconds                s     whole run wall_seconds when the training is over
    forecast_cost_usd                    USD   whole run cost_usd when the training is over
    ==================================== ===== ========= =======================================================

    ``window`` is since the last log; ``run`` has earlier processes of a resumed run. Unknown figures are left out. The
    closing summary has the same keys below ``efficiency/run/``, over the whole ``train()`` call.
    """
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
