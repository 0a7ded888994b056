"""A run that is asked to end does so after the step that is under way, with a checkpoint of it."""

from __future__ import annotations

import signal
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.measure.loader.sheltered import ShelteredStart
from hf_efficient.measure.loader.watch import torch_loader
from hf_efficient.measure.stop_agreement import StopAgreement
from hf_efficient.measure.stop_request import EndedBySignal, StopRequest

__all__ = ["StopWhenAsked"]


class StopWhenAsked(TrainerCallback):
    """Ends the training where its ranks agreed to; the checkpoint is one of a training that goes on.

    transformers' own ``enable_jit_checkpoint`` (5.23) is not used: each process saves when its own timer has run out,
    which no two do at the same step, and it may save between the gradients of a step and its update, which are then
    lost.

        on_train_begin     from here on a request is heard
        on_step_end        asked, and all ranks are here? save, do not evaluate
        on_save            the checkpoint is written: stop
        on_epoch_end       nothing more

    Attributes:
        stopped_after: the step after which the training was ended; None: it was not.
    """

    def __init__(self, request: StopRequest, agreement: StopAgreement) -> None:
        """Nobody is listened to before the training begins.

        Args:
            request: of this process.
            agreement: of this rank with the others.
        """
        self._request, self._agreement = request, agreement
        self._stopping = False
        self._kept_limit: int | None = None
        self._loader: Any = None
        self._sheltered: ShelteredStart | None = None
        self.stopped_after: int | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen; the signal that is heard shall not end those who load the data."""
        self._loader = torch_loader(kwargs.get("train_dataloader"))
        if getattr(self._loader, "num_workers", 0) > 0:
            self._sheltered = self._loader.worker_init_fn = ShelteredStart(self._loader.worker_init_fn)
        self._request.heard = True
        self._agreement.begin(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop here?

        Raises:
            EndedBySignal: the others cannot be asked; nothing is saved.
        """
        asked = self._agreement.after(state.global_step)
        if self._agreement.failed:
            raise EndedBySignal(signal.SIGTERM)
        if control.should_training_stop:  # it is over anyway
            return
        if self._stopping:  # whatever kept the Trainer from saving
            control.should_training_stop = True
        elif asked:
            self._stopping = True
            control.should_save, control.should_evaluate = True, False
            if args.save_total_limit == 1:  # the Trainer would delete this checkpoint in the end, beside the best
                self._kept_limit, args.save_total_limit = 1, 2

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop only now, so that the checkpoint does not say that the training is over."""
        if self._stopping:
            control.should_training_stop = True
            self.stopped_after = state.global_step

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """No evaluation and no further checkpoint of an epoch that was ended."""
        if self.stopped_after is not None:
            control.should_evaluate = control.should_save = False

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put back what was changed."""
        if self._kept_limit is not None:
            args.save_total_limit, self._kept_limit = self._kept_limit, None
        self.close()

    def close(self) -> None:
        """Nobody listens any more, however the training ended."""
        self._request.heard = False
        self._agreement.close()
        if self._sheltered is not None and self._loader.worker_init_fn is self._sheltered:
            self._loader.worker_init_fn = self._sheltered.inner
