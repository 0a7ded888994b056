"""The account around a recipe's run: where its process begins, is recorded, and ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.account.files import RUN_JSON, read_account
from hf_efficient.diagnosis.run import DIAGNOSIS_JSON, read_diagnosis
from hf_efficient.errors import OutputError, SetupError
from hf_efficient.hardware.prices import prices
from hf_efficient.hardware.rates import Rates
from hf_efficient.measure.process_timeline import process_timeline
from hf_efficient.measure.rates import rate_facts, state_rates
from hf_efficient.recipe.origins import told_where
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records import PhaseName, RunAccount
from hf_efficient.records.findings import Diagnosis

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

__all__ = ["RecordedRun", "open_records", "phase", "recipe_rates", "recorded_run", "state", "state_run"]


@dataclass
class RecordedRun:
    """What is known once the run is over.

    Attributes:
        account: of the whole run; None where nothing was recorded, it failed, or this is not the main process.
        diagnosis: of the same, likewise.
    """

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
    directory = timeline.directory
    timeline.end()
    if not timeline.until_exit:
        timeline.release()
    if directory is not None:
        run.account = _read(directory)
        run.diagnosis = _diagnosis(directory)


def recipe_rates(recipe: Recipe, args: TrainingArguments) -> dict[str, dict[str, Any]]:
    """What an hour of this run costs and where its electricity comes from, as facts for the records.

    Raises:
        SetupError: the provider that the recipe names has no known price of the GPU that is here, or the user's own
            prices cannot be read.
    """
    section = recipe.efficiency
    if not section.record_steps:
        return {}
    prices()  # what is wrong with the user's own is said as it is
    rates = Rates(section.price_usd_per_hour, section.price_from, section.market, section.grid)
    try:
        return rate_facts(rates, args.device, args.world_size)
    except SetupError as error:
        raise SetupError(f"{told_where(recipe, 'efficiency.price_from')}efficiency.{error}") from error


def open_records(recipe: Recipe, directory: Path, rank: int, rates: dict[str, dict[str, Any]]) -> None:
    """Record this run there from here on: what was measured so far is written."""
    if recipe.efficiency.record_steps:
        process_timeline().open(directory, rank, "recipe")
        state_rates(process_timeline(), rates)


def state_run(recipe: Recipe, trainer: Trainer) -> None:
    """What follows the training and its Trainer does not know, for the forecast."""
    if recipe.efficiency.record_steps:
        at_end = recipe.evaluate.at_end and trainer.eval_dataset is not None
        process_timeline().state("run", {"evaluate_at_end": at_end})


def phase(recipe: Recipe, name: PhaseName) -> AbstractContextManager[None]:
    """The time inside is called so."""
    return process_timeline().phase(name) if recipe.efficiency.record_steps else nullcontext()


def state(recipe: Recipe, topic: str, facts: Mapping[str, Any]) -> None:
    """Facts that the account needs beside the times."""
    if recipe.efficiency.record_steps:
        process_timeline().state(topic, facts)


def _read(directory: Path) -> RunAccount | None:
    try:
        return read_account(directory / RUN_JSON)
    except OutputError:  # it could not be written, which was said when it was tried
        return None


def _diagnosis(directory: Path) -> Diagnosis | None:
    try:
        return read_diagnosis(directory / DIAGNOSIS_JSON)
    except OutputError:  # likewise
        return None
