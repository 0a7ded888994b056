"""What goes wrong in a training without an error: counted, and stated for its diagnosis."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from hf_efficient.callbacks.checks import gradients_elsewhere, parameters_without_gradient
from hf_efficient.recording.checks import LossCheck
from hf_efficient.recording.compilation import compile_counts
from hf_efficient.recording.guard import never_raises
from hf_efficient.recording.timeline import Timeline

_MOST_NAMES = 20


logger = logging.getLogger(__name__)

_CONSEQUENCE = "Silent failures are no longer counted"
_never_raises = never_raises(_CONSEQUENCE, then=lambda failures: failures.stop())


class SilentFailures:
    """Of all trainings of one trainer. No method raises; none waits for a device but ``settle``, for logs and the end.

    Facts of topic ``silent_failures``:

        trainable_parameters, without_gradient    tensors, at the first update; absent where gradients are elsewhere
        names_without_gradient                    the first twenty of them
        updates, skipped_updates                  of the optimizer; those that a gradient scaler left out
        losses, losses_not_finite                 of micro-batches; absent where nobody sees them

    And of topic ``compilation`` what ``compile_counts`` tells.

    What every micro-batch and every step calls catches its faults itself: a call less, between kernels.

    Attributes:
        broken: it counts no longer.
        loss: called with that of each micro-batch, in every one: it does not do more than it must.
        first: no update of this training was seen yet.
    """

    def __init__(self, timeline: Timeline) -> None:
        """Nothing is counted before ``begin``; ``timeline`` is told."""
        self._timeline = timeline
        self._updates = self._skipped = 0
        self._losses = LossCheck(self._fault)
        self.begin()

    def begin(self) -> None:
        """A training begins; what is counted goes on."""
        self.broken = False
        self.loss: Callable[[torch.Tensor], None] = self._losses.add
        self.first = True
        self._told: dict[str, Any] = {}

    @_never_raises
    def before_update(self, args: TrainingArguments, model: nn.Module | None) -> None:
        """The gradients are there; those of the first update are looked at, not read."""
        if not self.first:
            return
        self.first = False
        if model is None or gradients_elsewhere(args):
            return
        without = parameters_without_gradient(model)
        self._timeline.state(
            "silent_failures",
            {
                "trainable_parameters": sum(one.requires_grad for one in model.parameters()),
                "without_gradient": len(without),
                "names_without_gradient": without[:_MOST_NAMES],
            },
        )

    def after_update(self, optimizer: Any) -> None:
        """The optimizer has stepped, or a gradient scaler has left that out (``AcceleratedOptimizer`` knows)."""
        if self.broken:
            return
        try:
            self._updates += 1
            self._skipped += bool(getattr(optimizer, "step_was_skipped", False))
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    @_never_raises
    def settle(self) -> None:
        """State what is known by now, where that is news."""
        seen, not_finite = self._losses.counts()
        failures = {"skipped_updates": self._skipped, "losses_not_finite": not_finite}
        if failures != self._told:
            self._told = failures
            self._state(seen, failures)

    @_never_raises
    def end(self) -> None:
        """Training is over."""
        seen, not_finite = self._losses.counts()
        self._state(seen, {"skipped_updates": self._skipped, "losses_not_finite": not_finite})
        compiled = compile_counts()
        if compiled is not None:
            self._timeline.state("compilation", compiled)

    def stop(self) -> None:
        """Nothing is counted from here to the next training."""
        self.broken, self.loss = True, _to_nobody

    def _fault(self) -> None:
        told = self.broken
        self.stop()
        if not told:
            logger.warning("%s, because of a fault.", _CONSEQUENCE, exc_info=True)

    def _state(self, seen: int, failures: dict[str, int]) -> None:
        facts = {"updates": self._updates, **failures}
        if seen:
            facts["losses"] = seen
        else:
            del facts["losses_not_finite"]
        self._timeline.state("silent_failures", facts)


def _to_nobody(loss: torch.Tensor) -> None:
    """Nobody counts any more."""
