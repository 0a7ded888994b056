"""A deeper instrument, driven by a Trainer's events."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.profilers.instrument import Instrument, InstrumentRun
from hf_efficient.recording.timeline import process_timeline
from hf_efficient.run_dir.json_file import PROFILE
from hf_efficient.text import instrument_cost

logger = logging.getLogger(__name__)


class InstrumentCallback(TrainerCallback):
    """Base of the callbacks of ``efficiency.profile``; each works alone in any Trainer.

    Its files go to ``OUTPUT_DIR/efficiency/profile``. What it cost is told when training ends: in a recipe's run by its
    account, elsewhere by ``tell``.
    """

    def __init__(
        self,
        instrument: Instrument,
        directory: str | Path | None = None,
        tell: Callable[[str], None] = logger.warning,
    ) -> None:
        """Nothing is measured before training begins.

        Args:
            instrument: is driven.
            directory: where its files go; default: ``OUTPUT_DIR/efficiency/profile``.
            tell: says on the main process what it cost and wrote.
        """
        self.instrument = instrument
        self._directory, self._tell = directory, tell
        self._timeline = process_timeline()
        self._run = InstrumentRun(instrument, self._timeline)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The instrument starts."""
        directory = Path(self._directory or Path(str(args.output_dir)) / "efficiency" / PROFILE)
        model = None if args.torch_compile else kwargs.get("model")  # a hook would break the compiled graph apart
        self._run.begin(directory, args.process_index, kwargs.get("train_dataloader"), model)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The batches of a step are there."""
        self._run.step_begins(state.global_step + 1)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A step is done."""
        self._run.step_ends(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The instrument stops, and its cost is told."""
        self.close()
        if self._timeline.way != "recipe" and args.process_index == 0:
            cost = self._run.account
            told = instrument_cost(cost.cost_seconds, cost.own_seconds, cost.steps, cost.files, cost.note)
            self._tell(f"profile.{cost.name} {told}")

    def close(self) -> None:
        """End it where no event does: training was ended by an exception."""
        self._run.end()
