"""What a recipe's run records: its process from the first line on, its start, its budget and its plan.

A start is recorded apart until it is ready to train, so that a mistake occupies no output directory.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.accounting.money import read_earlier
from hf_efficient.callbacks.budget_words import BudgetWords
from hf_efficient.callbacks.stop import BudgetCallback
from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.errors import HfEfficientError, OutputError, SetupError, first_line
from hf_efficient.estimate.cost import JOULES_PER_KWH
from hf_efficient.estimate.forecast import Limits, Spent
from hf_efficient.facts.prices import Rates, prices, rate_facts
from hf_efficient.launch.checkpoints import EFFICIENCY, remove, remove_if_empty
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.output import OutputPlan
from hf_efficient.planning.plan import plan_run
from hf_efficient.recipe.schema import Recipe, told_where
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Diagnosis
from hf_efficient.records.plan import RunPlan
from hf_efficient.records.steps import PhaseName
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.run_dir.paths import STARTING, make_room, rank_files, records_path
from hf_efficient.text import size

if TYPE_CHECKING:
    from transformers import TrainingArguments
    from trl import SFTConfig


PLAN_JSON = "plan.json"  # in the folder of the records

logger = logging.getLogger(__name__)

_words = functools.partial(
    BudgetWords,
    key="budget.",
    steps_key="train.max_steps",
    resume="the same command with `--resume budget.{limit}={value}` continues",
    meter="limit budget.usd or hours instead",
)


@dataclass
class RecordedRun:
    """Once the run is over; None where nothing was recorded, it failed, or this is not the main process."""

    account: RunAccount | None = None
    diagnosis: Diagnosis | None = None


@contextmanager
def recorded_run(recipe: Recipe) -> Iterator[RecordedRun]:
    """Everything inside belongs to the run; the account is written at the end, also after an exception."""
    run = RecordedRun()
    if not recipe.efficiency.record_steps:
        yield run
        return
    timeline = process_timeline()
    timeline.begin("imports")
    try:
        yield run
    except BaseException as error:
        timeline.end(error)
        if not timeline.until_exit:
            timeline.release()
        raise
    timeline.end()
    finished = timeline.finished  # None where nothing could be written, which was said, and on other ranks
    if not timeline.until_exit:
        timeline.release()
    if finished is not None:
        run.account, run.diagnosis = finished.account, finished.diagnosis


def recipe_rates(recipe: Recipe, args: TrainingArguments) -> dict[str, dict[str, Any]]:
    if not recipe.efficiency.record_steps:
        return {}
    section = recipe.cost
    prices()  # what is wrong with the user's own is said as it is
    rates = Rates(section.price_usd_per_hour, section.price_from, section.market, section.grid)
    try:
        return rate_facts(rates, args.device, args.world_size)
    except SetupError as error:
        raise SetupError(f"{told_where(recipe, 'cost.price_from')}cost.{error}") from error


def phase(recipe: Recipe, name: PhaseName) -> AbstractContextManager[None]:
    return process_timeline().phase(name) if recipe.efficiency.record_steps else nullcontext()


def state(recipe: Recipe, topic: str, facts: Mapping[str, Any]) -> None:
    if recipe.efficiency.record_steps:
        process_timeline().state(topic, facts)


class RunStart:
    """One process of a start; its records are in ``folder`` until it is ready."""

    def __init__(self, recipe: Recipe, plan: OutputPlan, args: TrainingArguments) -> None:
        self.folder = start_folder(plan)
        self._records = recipe.efficiency.record_steps
        self._continues = plan.continues
        self._run_folder = plan.directory / EFFICIENCY
        self._rank, self._world_size = args.process_index, args.world_size

    def forget_the_last(self) -> None:
        """Remove what a start left that never came to train, unless this one continues it."""
        if not (self._continues and self.folder.name == STARTING):
            remove(self._run_folder / STARTING)

    def is_ready(self) -> None:
        """The run begins: what was recorded so far becomes the start of its records. Rank 0 calls it first."""
        if not self._records or self.folder == self._run_folder:
            return
        if not self._continues:
            make_room(self._run_folder, self._rank, self._world_size)
        process_timeline().move_to(self._run_folder)
        self._leave()

    def fails(self) -> None:
        """A mistake was found: what this process recorded goes, unless it belongs to a run that is there."""
        if not self._records or self._continues or process_timeline().directory != self.folder.absolute():
            return
        process_timeline().discard()
        for kind in ("spans", "system"):
            remove(records_path(self.folder, kind, self._rank))
        self._leave()
        remove_if_empty(self._run_folder)

    def _leave(self) -> None:
        if self._rank == 0:
            with suppress(FileNotFoundError):  # another process was the last, perhaps in this moment
                for path in list(self.folder.iterdir()):
                    if path.suffix != ".jsonl":  # an account and a page that were made of a start
                        remove(path)
        remove_if_empty(self.folder)  # by the last process


@contextmanager
def recorded_start(
    recipe: Recipe, plan: OutputPlan, args: TrainingArguments, rates: dict[str, dict[str, Any]]
) -> Iterator[RunStart]:
    """Record from here on; inside, data and model are read. An exception takes the record back; after a signal or a
    kill the next start continues it, or removes it."""
    start = RunStart(recipe, plan, args)
    args.distributed_state.wait_for_everyone()  # all have seen what is there before it is changed
    with args.main_process_first(local=False, desc="records of the start"):
        if args.process_index == 0:
            start.forget_the_last()
    if recipe.efficiency.record_steps:
        process_timeline().open(start.folder, args.process_index, "recipe")
        for topic, stated in rates.items():
            process_timeline().state(topic, stated)
    try:
        yield start
    except Exception:
        start.fails()
        raise


def start_folder(plan: OutputPlan) -> Path:
    folder = plan.directory / EFFICIENCY
    has_records = any(rank_files(folder, kind) for kind in ("spans", "steps"))
    return folder if plan.continues and has_records else folder / STARTING


def recipe_budget(recipe: Recipe, listener: RunListener) -> BudgetCallback | None:
    limits = recipe.budget
    if limits is None:
        return None
    show = functools.partial(listener.stage, "Budget")
    return BudgetCallback(limits.usd, limits.hours, limits.kwh, words=_words, tell=show)


def check_budget_left(recipe: Recipe, directory: Path, price_usd_per_hour: float | None) -> None:
    budget = recipe.budget
    if budget is None:
        return
    limits, earlier = Limits(budget.usd, budget.hours, budget.kwh), read_earlier(directory)
    kwh = None if earlier.joules is None else earlier.joules / JOULES_PER_KWH
    spent = Spent(earlier.wall_seconds, earlier.cost_at(price_usd_per_hour), kwh)
    for limit, value in limits.given().items():
        used = spent.of(limit)
        if used is not None and used >= value:
            raise OutputError(_words(limits).spent_before(limit, used))


def plan_before(
    recipe: Recipe, args: SFTConfig, data: SftData | PreferenceData, usd_per_hour: float | None, listener: RunListener
) -> RunPlan | None:
    """The plan of a run; None where there is none, which the account says. A fault is one warning."""
    if not recipe.efficiency.plan or args.process_index != 0:
        return None
    try:
        with phase(recipe, "planning"):
            planned = plan_run(recipe, args, data, usd_per_hour)
    except Exception as error:
        why = first_line(error)
        if isinstance(error, HfEfficientError):
            logger.warning("The run is not planned: %s", why)
        else:
            logger.warning("The run is not planned, because of a fault; it continues.", exc_info=True)
            why = f"the planning failed: {type(error).__name__}: {why}"
        state(recipe, "plan", {"missing": [{"what": "predictions", "why": why}]})
        return None
    state(recipe, "plan", dataclasses.asdict(planned.run))
    _judge(planned, recipe, listener)
    return planned


def write_plan(planned: RunPlan | None, recipe: Recipe, directory: Path) -> None:
    if planned is not None and recipe.efficiency.record_steps:
        write_whole(directory / PLAN_JSON, json.dumps(dataclasses.asdict(planned), indent=2) + "\n")


def _judge(planned: RunPlan, recipe: Recipe, listener: RunListener) -> None:
    if planned.run.fits is not False:
        return
    (gpu,) = planned.plan.gpus
    ranks = planned.plan.ranks
    each = "" if ranks is None or ranks.count == 1 else f" on each of {ranks.count} GPUs"
    remedy = f"hf-efficient plan {recipe.path or 'RECIPE'} --advise"
    weights, usable = planned.plan.memory.model_bytes, gpu.usable_memory_bytes
    if weights > usable:
        raise SetupError(
            f"the weights alone are {size(weights)}{each}, and {gpu.name} has {size(usable)}: `{remedy}` shows what "
            "would fit. `efficiency.plan: false` runs it all the same."
        )
    if gpu.needed_bytes <= usable and gpu.notes:
        listener.stage("Warning", f"{gpu.name}: {gpu.notes[0]}")
        return
    needed = f"planned for {size(gpu.needed_bytes)}{each}, and {gpu.name} has {size(usable)}"
    listener.stage("Warning", f"it may run out of memory: {needed}. `{remedy}` shows what would fit.")
