"""The clock of a variant: when each optimizer step ended, the same way with our instrumentation and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["StepStamps", "positions", "synchronise"]


class StepStamps(TrainerCallback):
    """A reading at the end of every optimizer step, and what the steps held.

    A step's time is that between two readings: with the log after the step before, its own batches, forward, backward
    and update. The device is waited for before the first measured step and after the last one, and not in between.
    """

    def __init__(self, trainer: Trainer, warm_up: int, now: Callable[[], float] = time.perf_counter) -> None:
        """Watch a trainer that has not begun.

        Args:
            trainer: gets this as a callback.
            warm_up: steps that are not measured, at least 1.
            now: a monotonic clock in seconds.
        """
        self._warm_up, self._now = warm_up, now
        self._ends: list[float] = []
        self._tokens: list[int] = []
        self._micro_batches: list[int] = []
        self._logged_after: set[int] = set()
        self._last_step = 0
        fetch = trainer.get_batch_samples

        def counted(*args: Any, **kwargs: Any) -> Any:
            batches, items = fetch(*args, **kwargs)
            self._tokens.append(sum(positions(batch) for batch in batches))
            self._micro_batches.append(len(batches))
            return batches, items

        trainer.get_batch_samples = counted  # type: ignore[method-assign]
        trainer.add_callback(self)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The last step is known."""
        self._last_step = state.max_steps

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step is done."""
        if state.global_step in (self._warm_up, self._last_step):
            synchronise(args.device)
        self._ends.append(self._now())

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A log was written."""
        self._logged_after.add(state.global_step)

    def measurement(self) -> VariantMeasurement:
        """Of the steps after the warm-up."""
        first, last = self._warm_up, len(self._ends)
        return VariantMeasurement(
            step_seconds=[self._ends[at] - self._ends[at - 1] for at in range(first, last)],
            step_tokens=self._tokens[first:last],
            step_micro_batches=self._micro_batches[first:last],
            step_logged=[at in self._logged_after for at in range(first, last)],
        )


def positions(batch: Any) -> int:
    """Of a micro-batch, padding included, without reading anything from the device; 0 where it does not tell."""
    held: Sequence[Any] = list(batch.values()) if hasattr(batch, "values") else []
    named = batch.get("input_ids") if hasattr(batch, "get") else None
    if isinstance(named, torch.Tensor):
        return named.numel()
    return max((one.numel() for one in held if isinstance(one, torch.Tensor)), default=0)


def synchronise(device: torch.device) -> None:
    """Wait for the device; on a CPU there is nothing to wait for."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)
