"""The waits for a CUDA device, counted over some steps of a training; to show that instrumentation adds none."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.profilers.synchronisations import counted_synchronisations

__all__ = ["SynchronisationCount"]


class SynchronisationCount(TrainerCallback):
    """Counts from the end of one optimizer step to the end of a later one.

    Attributes:
        found: ``file:line`` and how often, once the later step has ended.
    """

    def __init__(self, first: int, last: int) -> None:
        """Count the steps after ``first``, up to and with ``last``."""
        self._first, self._last = first, last
        self._counting = contextlib.ExitStack()
        self.found: Counter[str] = Counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Start, or stop."""
        if state.global_step == self._first:
            self.found = self._counting.enter_context(counted_synchronisations())
        elif state.global_step == self._last:
            self._counting.close()
