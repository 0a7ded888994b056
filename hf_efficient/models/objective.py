"""What a trainer's step computes beside one forward and backward of the layers: its head, a reference model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.step_work import Head

__all__ = ["Objective", "has_fused_kernels", "objective_of"]

_METHODS = ("compute_loss", "_compute_loss", "training_step")
_KNOWN = (
    "transformers.trainer",
    "trl.trainer.base_trainer",
    "trl.trainer.sft_trainer",
    "trl.trainer.dpo_trainer",
    "hf_efficient.",
)


@dataclass(frozen=True)
class Objective:
    """How the loss comes about.

    Attributes:
        head: which positions the LM head projects.
        head_recomputed: whether the backward projects them once more.
        reference: what runs its forward alone on every batch: another model; ``base``, the one that is trained with
            its adapter switched off; ``ref``, the same with the adapter of that name; None without.
    """

    head: Head = "everywhere"
    head_recomputed: bool = False
    reference: nn.Module | Literal["base", "ref"] | None = None


def objective_of(trainer: Any) -> Objective:
    """The objective of transformers' ``Trainer``, TRL's ``SFTTrainer`` and ``DPOTrainer``, and what is built on them.

    ``chunked_loss`` says of a trainer of recipes that it trains with TRL's fused head.

    Raises:
        ModelError: a step may run the model in a way that is not known: another trainer, or a loss of its own.
    """
    _check_methods(trainer)
    names = {kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")}
    if "SFTTrainer" in names:
        if trainer.compute_loss_func is not None or trainer.label_smoother is not None:
            raise ModelError("SFTTrainer runs the model twice for compute_loss_func and label_smoothing_factor.")
        return Objective(_fused_head(trainer), head_recomputed=True)
    if "DPOTrainer" in names:
        return _preference(trainer)
    if getattr(trainer, "chunked_loss", False):
        return Objective(_fused_head(trainer), head_recomputed=True)
    return Objective()


def _check_methods(trainer: Any) -> None:
    for method in _METHODS:
        if method in vars(trainer):
            raise ModelError(f"{method} was replaced on the trainer: how often it runs the model is not known.")
        for kind in type(trainer).__mro__:  # all of them: a mixin on the left calls what lies below
            if method in vars(kind) and not kind.__module__.startswith(_KNOWN):
                raise ModelError(
                    f"{kind.__name__}.{method}: how often it runs the model is not known; FLOPs are counted for the "
                    "steps of Trainer, SFTTrainer and DPOTrainer."
                )


def _preference(trainer: Any) -> Objective:
    head = _fused_head(trainer)
    if trainer.precompute_ref_logps:
        return Objective(head, head_recomputed=True)
    if trainer.ref_model is not None:
        return Objective(head, head_recomputed=True, reference=trainer.accelerator.unwrap_model(trainer.ref_model))
    own: Literal["base", "ref"] = "ref" if "ref" in getattr(trainer.model, "peft_config", {}) else "base"
    return Objective(head, head_recomputed=True, reference=own)


def _fused_head(trainer: Any) -> Head:
    return "scored" if has_fused_kernels(trainer.args.device) else "shifted"


def has_fused_kernels(device: torch.device) -> bool:
    """Whether TRL's fused head runs on Triton there: it then projects the scored positions alone.

    Elsewhere it projects every position but the last of each row, by torch's operators.
    """
    from transformers.utils import is_triton_available

    return device.type in ("cuda", "xpu") and is_triton_available()
