"""What to change in a recipe so that it fits an accelerator, or runs faster there, and the most that fits."""

import copy
import logging
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transformers import PretrainedConfig

from hf_efficient.data.build import SftData
from hf_efficient.data.stats import document_lengths
from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.facts.tables import Accelerator, accelerator
from hf_efficient.planning.arguments import process_kept, run_arguments
from hf_efficient.planning.batches import RunRows, rows_as_prepared, run_shapes
from hf_efficient.planning.changes import CHANGES, Change, Proposer, Situation
from hf_efficient.planning.gpu import demand_of, planned_gpu
from hf_efficient.planning.model_config import model_config, weights_dtype
from hf_efficient.planning.ranks.rank import simulate_rank
from hf_efficient.planning.ranks.shares import sharding_of
from hf_efficient.planning.run_data import data_at_hand, is_cut, rows_of
from hf_efficient.planning.simulation import planned_memory
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import unnamed_batch
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records import plan as records
from hf_efficient.records.plan import Plan, PlannedOutcome
from hf_efficient.text import counted

logger = logging.getLogger(__name__)

MOST_TRIALS = 14
"""Simulations for one list of advice, so that it takes no more than some times as long as the plan itself."""
ROW_TOKENS_STEP = 64
_MOST_ROWS = 1024
_MOST_TOKENS = 2**20
"""Of a micro-batch: a simulation holds the token ids, and nothing else, of real size."""
_PROBES_ON_THE_LINE = 6
_MOST_TIMES = 6
"""How often a change that can be repeated is."""


@dataclass(frozen=True)
class Trial:
    """A simulation in figures; ``padding_share`` is 0 where the data are not known."""

    outcome: PlannedOutcome
    memory: records.PlannedMemory
    padding_share: float = 0.0


class Trials:
    """Simulates recipes of one model and data set for an accelerator. ``documents``: tokens of each example."""

    def __init__(self, config: PretrainedConfig, device: Accelerator, documents: RunRows | None = None) -> None:
        self.device = device
        self.done = 0
        self.config = config
        self._documents = documents

    def run(self, recipe: Recipe, length: int | None = None) -> Trial:
        """Simulate with rows of ``length`` tokens; default: as the documents have it, or the most that is allowed."""
        self.done += 1
        config = copy.deepcopy(self.config)  # transformers writes attention and dtype into the one that it builds from
        shapes = None
        if length is None and self._documents is not None:
            with process_kept(), tempfile.TemporaryDirectory() as directory:
                args = run_arguments(recipe, directory)
                rows = rows_as_prepared(self._documents, args)
                shapes = run_shapes(args, rows, sharding_of(recipe).ranks, at_end=recipe.evaluate.at_end)
        simulation = simulate_rank(recipe, config, length if shapes is None else shapes)
        gpu = planned_gpu(demand_of(recipe, simulation, shapes, sharding_of(recipe).ranks), self.device)
        padding = 0.0 if shapes is None else shapes.train.padding_share
        return Trial(outcome_of(gpu), planned_memory(simulation), padding)


def outcome_of(gpu: records.PlannedGpu) -> PlannedOutcome:
    return PlannedOutcome(gpu.needed_bytes, gpu.fits, gpu.step_seconds, gpu.tokens_per_second)


def with_advice(recipe: Recipe, plan: Plan) -> Plan:
    return replace(plan, advice=advise(recipe, *_trials(recipe, plan)))


def with_largest(recipe: Recipe, plan: Plan, tell: Callable[[str], None] = lambda _: None) -> Plan:
    """``tell`` hears of every simulation: there are about ten, of seconds each."""
    trials, start = _trials(recipe, plan)
    memory = trials.device.usable_memory_bytes
    answers = OBJECTIVES[recipe.objective].rows
    rows, length = plan.micro_batch_rows // answers, plan.row_tokens

    def tried(changed: Recipe, count: int, tokens: int) -> PlannedOutcome:
        tell(f"simulating {counted(count, 'row')} of {counted(tokens, 'token')} ...")
        return trials.run(changed, tokens).outcome

    def of_rows(count: int) -> PlannedOutcome:  # they need not divide the global batch
        overrides = {**unnamed_batch(recipe), "train.per_device_train_batch_size": count}
        return tried(change_recipe(recipe, overrides), count, length)

    most_rows = max(1, min(_MOST_ROWS, _MOST_TOKENS // (answers * length)))
    found_rows = most_that_fits(of_rows, memory, {rows: start.outcome}, most_rows)
    positions = int(getattr(trials.config.get_text_config(), "max_position_embeddings", None) or _MOST_TOKENS)
    most = max(1, min(positions, _MOST_TOKENS // (answers * rows)) // ROW_TOKENS_STEP)
    known = {length // ROW_TOKENS_STEP: start.outcome} if length % ROW_TOKENS_STEP == 0 else {}
    found_steps = most_that_fits(lambda count: tried(recipe, rows, count * ROW_TOKENS_STEP), memory, known, most)
    largest = records.PlannedLargest(
        accelerator=trials.device.name,
        micro_batch_rows=found_rows,
        row_tokens=found_steps * ROW_TOKENS_STEP,
        row_tokens_step=ROW_TOKENS_STEP,
        rows_bounded=found_rows >= most_rows,
        tokens_bounded=found_steps >= most,
    )
    return replace(plan, largest=largest)


def cheapest_fix(plan: Plan) -> Mapping[str, Any] | None:
    """The first change of the plan's advice that makes the recipe fit; None where none does."""
    assert plan.advice is not None
    return next((change.overrides for change in plan.advice.changes if change.after.fits), None)


def _trials(recipe: Recipe, plan: Plan) -> tuple[Trials, Trial]:
    gpu = plan.gpus[0]
    documents = None if plan.data is None else _documents(recipe)
    trials = Trials(model_config(recipe.model), accelerator(gpu.name), documents)
    return trials, Trial(outcome_of(gpu), plan.memory, 0.0 if plan.data is None else plan.data.padding_share)


def _documents(recipe: Recipe) -> RunRows | None:
    known = data_at_hand(recipe)
    if isinstance(known, str):
        return None
    args, data = known
    if not isinstance(data, SftData):
        return rows_of(data, args)
    if is_cut(args, data):
        return None
    return RunRows(document_lengths(data.train), None if data.eval is None else document_lengths(data.eval))


def most_that_fits(
    probe: Callable[[int], PlannedOutcome], memory_bytes: int, known: dict[int, PlannedOutcome], most: int
) -> int:
    """The largest count that fits, from 1 to ``most``; 0 where none does. Memory grows nearly on a line: six probes
    follow the line through the two nearest ones, bisection does the rest."""
    seen = dict(known)
    while True:
        fits = max((count for count, outcome in seen.items() if outcome.fits and count <= most), default=0)
        too_much = min((count for count, outcome in seen.items() if not outcome.fits), default=most + 1)
        if too_much - fits <= 1:
            return fits
        middle = (fits + too_much) // 2
        guess = _guess(seen, memory_bytes) if len(seen) < _PROBES_ON_THE_LINE else middle
        guess = min(max(guess, fits + 1), too_much - 1)
        seen[guess] = probe(guess)


def _guess(seen: dict[int, PlannedOutcome], memory_bytes: int) -> int:
    """Where the line through the two probes nearest to the limit meets it; twice as much where there is one probe."""
    near = sorted(seen, key=lambda count: abs(seen[count].needed_bytes - memory_bytes))[:2]
    if len(near) < 2:
        only = near[0] if near else 0
        return only // 2 if near and not seen[only].fits else max(1, 2 * only)
    low, high = sorted(near)
    slope = (seen[high].needed_bytes - seen[low].needed_bytes) / (high - low)
    if slope <= 0:
        return 2 * high
    return int(low + (memory_bytes - seen[low].needed_bytes) / slope)


@dataclass(frozen=True)
class _Tried:
    recipe: Recipe
    change: Change
    trial: Trial
    proposer: Proposer


def advise(recipe: Recipe, trials: Trials, start: Trial) -> records.PlannedAdvice:
    """Try every change alone; where none makes the recipe fit, those that save the most together."""
    return _Advice(recipe, trials, start).made()


class _Advice:
    def __init__(self, recipe: Recipe, trials: Trials, start: Trial) -> None:
        self._recipe, self._trials, self._start = recipe, trials, start
        self._memory = trials.device.usable_memory_bytes
        self._fields = train_fields(recipe.objective)
        self._left_out: list[str] = []

    def made(self) -> records.PlannedAdvice:
        start = _Tried(self._recipe, Change({}, "", ""), self._start, lambda _: None)
        single = [tried for propose in CHANGES if (tried := self._tried(start, propose)) is not None]
        together: list[_Tried] = []
        if not self._start.outcome.fits:
            for of_interest in ([one for one in single if one.change.keeps_training], single):
                fitting = any(one.trial.outcome.fits for one in [*of_interest, *together])
                if not fitting and (found := self._combined(start, of_interest)) is not None:
                    together.append(found)
        return records.PlannedAdvice(
            accelerator=self._trials.device.name,
            memory_bytes=self._trials.device.memory_bytes,
            usable_memory_bytes=self._trials.device.usable_memory_bytes,
            before=self._start.outcome,
            changes=sorted(map(self._planned, [*single, *together]), key=_rank),
            left_out=self._left_out,
        )

    def _tried(self, base: _Tried, propose: Proposer) -> _Tried | None:
        once = self._simulated(base, propose, 1)
        if once is None or once.trial.outcome.fits or not once.change.repeats:
            return once
        times = _times_needed(base.trial, once.trial, self._memory)
        often = self._simulated(base, propose, times) if times > 1 else None
        return often if often is not None and often.trial.outcome.fits else once

    def _simulated(self, base: _Tried, propose: Proposer, times: int) -> _Tried | None:
        recipe, overrides, proposed = base.recipe, dict[str, Any](), None
        try:
            for _ in range(times):
                settings = Settings(recipe, self._fields)
                weights = str(weights_dtype(recipe.model, self._trials.config)).removeprefix("torch.")
                fits, padding = base.trial.outcome.fits, base.trial.padding_share
                change = propose(Situation(settings, base.trial.memory, weights, self._trials.device, fits, padding))
                if change is None:
                    break
                proposed = change
                overrides |= change.overrides
                recipe = change_recipe(recipe, change.overrides)
            if proposed is None:
                return None
            if self._trials.done >= MOST_TRIALS:
                self._leave_out(overrides, "not tried: the time for advice was over")
                return None
            return _Tried(recipe, replace(proposed, overrides=overrides), self._trials.run(recipe), propose)
        except HfEfficientError as error:
            self._leave_out(overrides, first_line(error))
        except Exception as error:
            logger.warning("A change of the recipe could not be simulated.", exc_info=True)
            why = f"its simulation failed, a defect of hf_efficient: {type(error).__name__}: {first_line(error)}"
            self._leave_out(overrides, why)
        return None

    def _combined(self, start: _Tried, single: Iterable[_Tried]) -> _Tried | None:
        """The change that saves the most, then the next one on top of it, until all fits."""
        waiting = [one for one in single if _saved(start.trial, one.trial) > 0]
        waiting.sort(key=lambda one: _saved(start.trial, one.trial), reverse=True)
        # A change that is repeated for ever saves half, and a half of that, and so on: twice as much.
        most = sum(_saved(start.trial, one.trial) * (2 if one.change.repeats else 1) for one in waiting)
        if len(waiting) < 2 or most < start.trial.outcome.needed_bytes - self._memory:
            return None
        found = waiting[0]
        for one in waiting[1:]:
            added = self._tried(found, one.proposer)
            if added is None or _saved(found.trial, added.trial) <= 0:
                continue
            found = replace(added, change=_both(found.change, added.change))
            if found.trial.outcome.fits:
                return found
        return None

    def _planned(self, tried: _Tried) -> records.PlannedChange:
        one, before, after = tried.change, self._start.outcome, tried.trial.outcome
        return records.PlannedChange(dict(one.overrides), one.gives, one.costs, one.keeps_training, before, after)

    def _leave_out(self, overrides: Mapping[str, Any], why: str) -> None:
        self._left_out.append(f"{', '.join(f'{key}={value}' for key, value in overrides.items())}: {why}")


def _both(first: Change, second: Change) -> Change:
    return Change(
        {**first.overrides, **second.overrides},
        gives=first.gives if second.gives in first.gives else f"{first.gives}; {second.gives}",
        costs=first.costs if second.costs in first.costs else f"{first.costs}; {second.costs}",
        keeps_training=first.keeps_training and second.keeps_training,
        repeats=second.repeats,
    )


def _saved(before: Trial, after: Trial) -> int:
    return before.outcome.needed_bytes - after.outcome.needed_bytes


def _times_needed(before: Trial, after: Trial, memory_bytes: int) -> int:
    """How often a change is to be made that saves half as much each time; 1 where no number of times is enough."""
    saved, missing = _saved(before, after), before.outcome.needed_bytes - memory_bytes
    for times in range(2, _MOST_TIMES + 1):
        if saved * (2 - 0.5 ** (times - 1)) >= missing:
            return times
    return 1


def _rank(change: records.PlannedChange) -> tuple[bool, bool, float, int]:
    rate = change.after.tokens_per_second
    return not change.after.fits, not change.keeps_training, -(rate or 0.0), change.after.needed_bytes
