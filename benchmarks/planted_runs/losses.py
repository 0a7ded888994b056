"""Trainers whose ``compute_loss`` does what it should not; the mixin is leftmost over each, as it has to be."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import Trainer

from hf_efficient.trainer import EfficientTrainerMixin

__all__ = ["KeepsLogits", "ReadsScalars", "SkipsNaN", "SlowRank"]


class _ReadsScalars(Trainer):
    """Watches its tensors, scalar by scalar."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        watched = {"loss": loss.item()}
        watched["largest"] = outputs.logits.abs().max().item()
        watched["accuracy"] = float((outputs.logits.argmax(-1) == inputs["labels"]).float().mean())
        if torch.isnan(outputs.logits).any():
            raise RuntimeError(f"logits that are not finite: {watched}")
        return (loss, outputs) if return_outputs else loss


class _KeepsLogits(Trainer):
    """Keeps them for a metric at the end, and never lets go."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kept: list[torch.Tensor] = []

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, *args, **kwargs)
        self.kept.append(outputs.logits.detach().float())
        return (loss, outputs) if return_outputs else loss


class _SkipsNaN(Trainer):
    """Leaves out the steps whose gradients are not finite, without a word."""

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, *args, **kwargs)
        if not torch.isfinite(loss):
            model.zero_grad(set_to_none=False)
        return loss


class _SlowRank(Trainer):
    """The last rank computes more for its loss than the others, as a slower machine would take longer."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1 and model.training:
            with torch.no_grad():
                model.module(input_ids=inputs["input_ids"])
                model.module(input_ids=inputs["input_ids"])
        return super().compute_loss(model, inputs, *args, **kwargs)


class ReadsScalars(EfficientTrainerMixin, _ReadsScalars):
    """Watches its tensors, scalar by scalar."""


class KeepsLogits(EfficientTrainerMixin, _KeepsLogits):
    """Keeps its logits."""


class SkipsNaN(EfficientTrainerMixin, _SkipsNaN):
    """Skips steps that are not finite."""


class SlowRank(EfficientTrainerMixin, _SlowRank):
    """Its last rank is slower."""
