"""The records of a start: opened before data and model are read, and the run's own once it is ready to train.

Until then they lie in a folder of their own, so that a mistake in a recipe does not occupy the output directory, and a
run that is to be replaced keeps its records apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_efficient.account.reading import rank_files, records_path
from hf_efficient.launch.account import open_records
from hf_efficient.launch.output import OutputPlan
from hf_efficient.launch.run_files import EFFICIENCY, STARTING, remove, remove_if_empty
from hf_efficient.measure.process_timeline import process_timeline
from hf_efficient.measure.set_aside import make_room
from hf_efficient.recipe.schema import Recipe

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = ["RunStart", "recorded_start", "start_folder"]


class RunStart:
    """One process of a start whose output directory has been decided.

    Attributes:
        folder: of its records until it is ready.
    """

    def __init__(self, recipe: Recipe, plan: OutputPlan, args: TrainingArguments) -> None:
        """Nothing is changed.

        Args:
            recipe: of the run.
            plan: what becomes of its output directory.
            args: tell the rank.
        """
        self.folder = start_folder(plan)
        self._records = recipe.efficiency.record_steps
        self._goes_on = plan.goes_on
        self._run_folder = plan.directory / EFFICIENCY
        self._rank, self._world_size = args.process_index, args.world_size

    def forget_the_last(self) -> None:
        """Remove what a start left that never came to train, unless this one goes on with it.

        Raises:
            OutputError: it cannot be removed.
        """
        if not (self._goes_on and self.folder.name == STARTING):
            remove(self._run_folder / STARTING)

    def is_ready(self) -> None:
        """The run begins: what was recorded so far becomes the start of its records. Rank 0 calls it first."""
        if not self._records or self.folder == self._run_folder:
            return
        if not self._goes_on:
            make_room(self._run_folder, self._rank, self._world_size)
        process_timeline().move_to(self._run_folder)
        self._leave()

    def fails(self) -> None:
        """A mistake was found: what this process recorded goes, unless it belongs to a run that lies there."""
        if not self._records or self._goes_on or process_timeline().directory != self.folder.absolute():
            return
        process_timeline().discard()
        for kind in ("spans", "system"):
            remove(records_path(self.folder, kind, self._rank))
        self._leave()
        remove_if_empty(self._run_folder)

    def _leave(self) -> None:
        if self._rank == 0:
            for path in self._files():
                if path.suffix != ".jsonl":  # an account and a page that were made of a start
                    remove(path)
        remove_if_empty(self.folder)  # by the last process

    def _files(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:  # another process was the last, perhaps in this moment
            return []


@contextmanager
def recorded_start(
    recipe: Recipe, plan: OutputPlan, args: TrainingArguments, rates: dict[str, dict[str, Any]]
) -> Iterator[RunStart]:
    """Record from here on; inside, data and model are read.

    An exception takes back what was recorded. What ends the process from outside, a signal or a kill, does not: the
    next start may go on with it, or removes it.

    Args:
        recipe: of the run.
        plan: what becomes of its output directory.
        args: tell the rank.
        rates: what an hour of this run costs.

    Raises:
        OutputError: what an earlier start left cannot be removed.
    """
    start = RunStart(recipe, plan, args)
    args.distributed_state.wait_for_everyone()  # all have seen what lies there before it is changed
    with args.main_process_first(local=False, desc="records of the start"):
        if args.process_index == 0:
            start.forget_the_last()
    open_records(recipe, start.folder, args.process_index, rates)
    try:
        yield start
    except Exception:
        start.fails()
        raise


def start_folder(plan: OutputPlan) -> Path:
    """Where a start is recorded until it is ready: with the records of its run, or apart where it has none yet."""
    folder = plan.directory / EFFICIENCY
    has_records = any(rank_files(folder, kind) for kind in ("spans", "steps"))
    return folder if plan.goes_on and has_records else folder / STARTING
