"""What only the Trainer's events know: epochs, the optimizer's step, the end of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.callbacks.memory import MemoryCount
from hf_efficient.callbacks.schedule import note_schedule
from hf_efficient.callbacks.silent_failures import SilentFailures
from hf_efficient.measure.recorder import StepRecorder

__all__ = ["StepRecorderCallback"]


class StepRecorderCallback(TrainerCallback):
    """Belongs to ``EfficientTrainerMixin``, which records the phases that no event marks.

    It goes first among the callbacks, so that what the others do is not counted as the optimizer's work.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        memory: MemoryCount | None = None,
        model_stands: Callable[[], None] = lambda: None,
        silent: SilentFailures | None = None,
    ) -> None:
        """Nothing is recorded by the callback itself.

        Args:
            recorder: is told.
            memory: counts the memory by category; None: it is not counted.
            model_stands: called when training begins: the model is placed, wrapped and checkpointed.
            silent: counts what fails without an error; None: it is not counted.
        """
        self._recorder, self._memory, self._model_stands = recorder, memory, model_stands
        self._silent = silent

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The loop starts, perhaps for a second time (``auto_find_batch_size``)."""
        self._recorder.abandon_step()
        self._model_stands()
        if self._silent is not None:
            self._silent.begin()
        self._recorder.watch_loader(kwargs.get("train_dataloader"))
        if self._recorder.timeline is not None:
            note_schedule(self._recorder.timeline, args, state, kwargs.get("train_dataloader"))
        if self._memory is not None:
            self._memory.begin(args, kwargs.get("model"), kwargs.get("optimizer"))

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """From here to the first batch (``next_step``), workers start and fetch: data wait of the next step."""
        self._recorder.next_step()
        self._recorder.marks.data_wait()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer steps; the scheduler and ``zero_grad`` follow."""
        self._recorder.marks.optimizer()
        if self._memory is not None and self._memory.wanted:
            self._memory.before_step(kwargs.get("model"))
        if self._silent is not None and self._silent.first:
            self._silent.before_update(args, kwargs.get("model"))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer has stepped; gradients are still there."""
        if self._memory is not None and self._memory.wanted:
            self._memory.after_step(kwargs.get("model"), kwargs.get("optimizer"))
        if self._silent is not None:
            self._silent.after_update(kwargs.get("optimizer"))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The update is done; what the other callbacks do now, and the Trainer until it fetches, is bookkeeping."""
        self._recorder.step_done(state.global_step, state.epoch)
        self._recorder.marks.bookkeeping()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint is written; what the other callbacks do with it, an upload perhaps, belongs to it."""
        self._recorder.begin("checkpointing")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """What failed without an error is stated."""
        if self._silent is not None:
            self._silent.end()
