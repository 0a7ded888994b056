"""What to change in a recipe so that it fits an accelerator, or runs faster there, each change rehearsed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.planning.changes import CHANGES
from hf_efficient.planning.changes.change import Change, Proposer, Situation
from hf_efficient.planning.trials import Trial, Trials
from hf_efficient.planning.weights_dtype import weights_dtype
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.plan import PlannedAdvice, PlannedChange

if TYPE_CHECKING:
    from transformers import PretrainedConfig

logger = logging.getLogger(__name__)

_MOST_TIMES = 6
"""How often a change that can be repeated is."""


@dataclass(frozen=True)
class _Tried:
    """A recipe with a change, or with several."""

    recipe: Recipe
    change: Change
    trial: Trial
    proposer: Proposer | None = field(default=None, compare=False)


def advise(recipe: Recipe, config: PretrainedConfig, trials: Trials, start: Trial) -> PlannedAdvice:
    """Try every change alone; where none of them makes the recipe fit, those that save the most together.

    Where no single change fits that leaves the training what it is, such changes are put together as well.

    Args:
        recipe: the recipe.
        config: of its model.
        trials: on the accelerator.
        start: the recipe as it is.
    """
    return _Advice(recipe, config, trials, start).made()


class _Advice:
    def __init__(self, recipe: Recipe, config: PretrainedConfig, trials: Trials, start: Trial) -> None:
        self._recipe, self._config, self._trials, self._start = recipe, config, trials, start
        self._fields = train_fields(recipe.method)
        self._left_out: list[str] = []

    def made(self) -> PlannedAdvice:
        start = _Tried(self._recipe, Change({}, "", ""), self._start)
        single = [tried for propose in CHANGES if (tried := self._tried(start, propose)) is not None]
        together: list[_Tried] = []
        if not self._start.outcome.fits:
            for of_interest in ([one for one in single if one.change.keeps_training], single):
                fitting = any(one.trial.outcome.fits for one in [*of_interest, *together])
                if not fitting and (found := self._combined(start, of_interest)) is not None:
                    together.append(found)
        return PlannedAdvice(
            accelerator=self._trials.device.name,
            memory_bytes=self._trials.device.memory_bytes,
            usable_memory_bytes=self._trials.device.usable_memory_bytes,
            before=self._start.outcome,
            changes=sorted(map(self._told, [*single, *together]), key=_rank),
            left_out=self._left_out,
        )

    def _tried(self, base: _Tried, propose: Proposer) -> _Tried | None:
        """A proposal rehearsed; one that can be repeated as often as it is likely to need."""
        once = self._rehearsed(base, propose, 1)
        if once is None or once.trial.outcome.fits or not once.change.repeats:
            return once
        times = _times_needed(base.trial, once.trial, self._trials.device.usable_memory_bytes)
        often = self._rehearsed(base, propose, times) if times > 1 else None
        return often if often is not None and often.trial.outcome.fits else once

    def _rehearsed(self, base: _Tried, propose: Proposer, times: int) -> _Tried | None:
        recipe, change = base.recipe, None
        try:
            for _ in range(times):
                proposed = propose(self._situation(recipe, base.trial))
                if proposed is None:
                    break
                recipe = change_recipe(recipe, proposed.overrides)
                merged = proposed.overrides if change is None else {**change.overrides, **proposed.overrides}
                change = replace(proposed, overrides=merged)
            if change is None:
                return None
            if not self._trials.left:
                self._leave_out(change.overrides, "not tried, for want of time")
                return None
            return _Tried(recipe, change, self._trials.run(recipe), propose)
        except HfEfficientError as error:
            self._leave_out((change or proposed or Change({}, "", "")).overrides, first_line(error))
            return None
        except Exception as error:
            logger.warning("A change of the recipe could not be rehearsed.", exc_info=True)
            why = f"its rehearsal failed, a defect of hf_efficient: {type(error).__name__}: {first_line(error)}"
            self._leave_out((change or proposed or Change({}, "", "")).overrides, why)
            return None

    def _situation(self, recipe: Recipe, trial: Trial) -> Situation:
        weights = str(weights_dtype(recipe.model, self._config)).removeprefix("torch.")
        settings = Settings(recipe, self._fields)
        outcome, padding = trial.outcome, trial.padding_share
        return Situation(settings, trial.memory, weights, self._trials.device, outcome.fits, padding)

    def _combined(self, start: _Tried, single: Iterable[_Tried]) -> _Tried | None:
        """The change that saves the most, then the next one on top of it, until all fits."""
        waiting = [one for one in single if _saved(start.trial, one.trial) > 0]
        waiting.sort(key=lambda one: _saved(start.trial, one.trial), reverse=True)
        missing = _missing(start.trial, self._trials.device.usable_memory_bytes)
        if len(waiting) < 2 or sum(_most_saved(start.trial, one) for one in waiting) < missing:
            return None
        found = waiting[0]
        for one in waiting[1:]:
            assert one.proposer is not None
            added = self._tried(found, one.proposer)
            if added is None or _saved(found.trial, added.trial) <= 0:
                continue
            found = replace(added, change=_both(found.change, added.change))
            if found.trial.outcome.fits:
                return found
        return None

    def _told(self, tried: _Tried) -> PlannedChange:
        change = tried.change
        before, after = self._start.outcome, tried.trial.outcome
        return PlannedChange(dict(change.overrides), change.gives, change.costs, change.keeps_training, before, after)

    def _leave_out(self, overrides: Mapping[str, Any], why: str) -> None:
        told = ", ".join(f"{key}={value}" for key, value in overrides.items())
        self._left_out.append(f"{told}: {why}")


def _both(first: Change, second: Change) -> Change:
    return Change(
        {**first.overrides, **second.overrides},
        gives=_words(first.gives, second.gives),
        costs=_words(first.costs, second.costs),
        keeps_training=first.keeps_training and second.keeps_training,
        repeats=second.repeats,
    )


def _words(first: str, second: str) -> str:
    return first if second in first else f"{first}; {second}"


def _saved(before: Trial, after: Trial) -> int:
    return before.outcome.needed_bytes - after.outcome.needed_bytes


def _missing(trial: Trial, memory_bytes: int) -> int:
    return trial.outcome.needed_bytes - memory_bytes


def _most_saved(before: Trial, one: _Tried) -> int:
    """What a change saves, or would if it were repeated for ever: half, and a half of that, and so on."""
    return _saved(before, one.trial) * (2 if one.change.repeats else 1)


def _times_needed(before: Trial, after: Trial, memory_bytes: int) -> int:
    """How often a change is to be made that saves half as much each time; 1 where no number of times is enough."""
    saved, missing = _saved(before, after), _missing(before, memory_bytes)
    for times in range(2, _MOST_TIMES + 1):
        if saved * (2 - 0.5 ** (times - 1)) >= missing:
            return times
    return 1


def _rank(change: PlannedChange) -> tuple[bool, bool, float, int]:
    rate = change.after.tokens_per_second
    return not change.after.fits, not change.keeps_training, -(rate or 0.0), change.after.needed_bytes
