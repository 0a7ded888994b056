"""What a recipe's run records: its process from the first line on, its start, its budget and its plan.

A start is recorded apart until it is ready to train, so that a mistake occupies no output directory.
"""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from trl import SFTConfig

from hf_efficient.accounting.money import read_earlier
from hf_efficient.callbacks.stop import BudgetCallback, BudgetWords
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
from hf_efficient.recording.timeline import Timeline, no_timeline, process_timeline
from hf_efficient.records.plan import RunPlan
from hf_efficient.records.steps import PhaseName
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.run_dir.paths import STARTING, make_room, rank_files, records_path
from hf_efficient.text import size

PLAN_JSON = "plan.json"  # in the folder of the records

logger = logging.getLogger(__name__)

_words = functools.partial(
    BudgetWords,
    key="budget.",
    steps_key="train.max_steps",
    resume="the same command with `--resume budget.{limit}={value}` continues",
    meter="limit budget.usd or hours instead",
)


@contextmanager
def recorded_run(recipe: Recipe) -> Iterator[Timeline]:
    """Everything inside belongs to the run; the account is written at the end, also after an exception."""
    if not recipe.efficiency.record_steps:
        yield no_timeline()
        return
    timeline = process_timeline()
    timeline.begin("imports")
    try:
        yield timeline
    except BaseException as error:
        timeline.end(error)
        raise
    else:
        timeline.end()
    finally:
        if not timeline.until_exit:
            timeline.release()


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


@contextmanager
def recorded_start(
    recipe: Recipe, plan: OutputPlan, args: TrainingArguments, rates: dict[str, dict[str, Any]]
) -> Iterator[Callable[[], None]]:
    """Record from here on; inside, data and model are read. What it gives is called when the run begins, by rank 0
    first: what was recorded so far becomes the start of its records. An exception takes the record back, unless it
    belongs to a run that is there; after a signal or a kill the next start continues it, or removes it."""
    records, continues, rank = recipe.efficiency.record_steps, plan.continues, args.process_index
    folder, run_folder, timeline = start_folder(plan), plan.directory / EFFICIENCY, process_timeline()

    def begin() -> None:
        if records and folder != run_folder:
            if not continues:
                make_room(run_folder, rank, args.world_size)
            timeline.move_to(run_folder)
            _leave(folder, rank)

    args.distributed_state.wait_for_everyone()  # all have seen what is there before it is changed
    with args.main_process_first(local=False, desc="records of the start"):
        if rank == 0 and not (continues and folder.name == STARTING):
            remove(run_folder / STARTING)  # of a start that never came to train
    if records:
        timeline.open(folder, rank, "recipe")
        for topic, stated in rates.items():
            timeline.state(topic, stated)
    try:
        yield begin
    except Exception:
        if records and not continues and timeline.directory == folder.absolute():
            timeline.discard()
            for kind in ("spans", "system"):
                remove(records_path(folder, kind, rank))
            _leave(folder, rank)
            remove_if_empty(run_folder)
        raise


def _leave(folder: Path, rank: int) -> None:
    if rank == 0:
        with suppress(FileNotFoundError):  # another process was the last, perhaps in this moment
            for path in list(folder.iterdir()):
                if path.suffix != ".jsonl":  # an account and a page that were made of a start
                    remove(path)
    remove_if_empty(folder)  # by the last process


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
