"""What a run says of itself while it goes on: figures for its logs, notes of its evaluations and saves."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hf_efficient.measure.log_figures import WHOLE_PREFIX, log_figures
from hf_efficient.measure.recorder import StepRecorder

__all__ = ["RunLog"]

logger = logging.getLogger(__name__)


class RunLog:
    """Belongs to whoever records the run's steps; no method raises, all do nothing where nothing is recorded."""

    def __init__(self, recorder: StepRecorder) -> None:
        self._recorder = recorder
        self._timeline = recorder.timeline
        self._faulty = False

    def now_seconds(self) -> float:
        """A reading of the clock, to measure a duration by."""
        return 0.0 if self._timeline is None else self._timeline.now_seconds()

    def evaluated(self, step: int, seconds: float, metrics: Mapping[str, float | None]) -> None:
        """An evaluation is done, in a ``train()`` call or outside."""
        if self._timeline is not None:
            self._timeline.note("evaluation", step=step, seconds=round(seconds, 6), metrics=dict(metrics))
            if self._timeline.live is not None:
                self._timeline.live.figures.evaluations.add(step, seconds)

    def saved(self, step: int, seconds: float) -> None:
        """A checkpoint is written."""
        if self._timeline is not None:
            self._timeline.note("save", step=step, seconds=round(seconds, 6))
            if self._timeline.live is not None:
                self._timeline.live.figures.saves.add(step, seconds)

    def figures(self, step: int, *, whole: bool = False) -> dict[str, float]:
        """What a log may carry, by key (see ``measure/log_figures.py``); nothing outside a ``train()`` call.

        Args:
            step: optimizer steps done.
            whole: of the whole call, which is over, rather than since the log before.
        """
        live = None if self._timeline is None else self._timeline.live
        if live is None or self._faulty or not self._recorder.recording:
            return {}
        try:
            if whole:
                self._recorder.write_ready()
                return log_figures(live.figures.whole(), live, None, WHOLE_PREFIX)
            return log_figures(live.figures.take_window(self._recorder.under_way()), live, live.outlook(step))
        except Exception:
            self._faulty = True
            logger.warning("The logs carry no figures any more, because of a fault; training goes on.", exc_info=True)
            return {}
