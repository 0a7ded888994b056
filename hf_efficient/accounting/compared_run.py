"""One run of a comparison: its steps, each once, its figures, and its losses after as many tokens as the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hf_efficient.accounting.columns import Column
from hf_efficient.accounting.headline import headline
from hf_efficient.accounting.steps import StepColumns, columns_of
from hf_efficient.estimate.significance import Steps

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
class MeasuredRun:
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


def until_of(runs: Sequence[MeasuredRun]) -> Until:
    trained = min(float(run.ends[-1]) if len(run.rows) else math.nan for run in runs)
    return Until(trained, min((run.evaluated[-1][0] for run in runs if run.evaluated), default=0.0))


def mean_rate(steps: Steps) -> float:
    assert steps.per is not None
    return float(steps.seconds.sum() / steps.per.sum())
