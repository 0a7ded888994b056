"""A training whose backward and update do nothing: what is left is the forward, in the Trainer's own loop."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer

from hf_efficient.isolate.held_batches import hold_batches
from hf_efficient.isolate.training import timed_training
from hf_efficient.isolate.variant import Setup
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["forward_training"]


def forward_training(setup: Setup, *, with_graph: bool) -> VariantMeasurement:
    """Time the forward of each step, on batches made beforehand.

    Without gradients an optimizer passes over every parameter, and clipping finds nothing to clip.

    Args:
        setup: of the variant.
        with_graph: keep what a backward would read; else run under ``torch.no_grad``.

    Raises:
        HfEfficientError: as for a run.
    """

    def adjust(trainer: Trainer) -> None:
        hold_batches(trainer, setup.warm_up + setup.steps, setup.share)
        trainer.accelerator.backward = _no_backward
        if not with_graph:
            trainer.compute_loss = torch.no_grad()(trainer.compute_loss)  # type: ignore[method-assign]

    return timed_training(setup, adjust)


def _no_backward(loss: torch.Tensor, **kwargs: Any) -> None:
    """Takes the place of ``Accelerator.backward``."""
