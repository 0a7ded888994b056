"""Whether DDP looks in every step for weights that take no part in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = ["expect_gradients", "has_experts"]


def expect_gradients(args: TrainingArguments, model: Any) -> None:
    """Tell DDP that every trained weight gets a gradient, where the recipe does not say and the model has no experts.

    The Trainer lets DDP walk the graph of each forward where activations are not recomputed: time for what no dense
    model needs. A weight without a gradient ends the run in its first step (``efficiency.check_gradients``), or with
    an error of DDP's in the second, which ``explained_faults`` puts into words. Experts that no token is sent to have
    none in some steps only, so for them the Trainer's own default stays.

    Args:
        args: of the run; the Trainer is not made yet.
        model: with its adapter.
    """
    if args.ddp_find_unused_parameters is None and not has_experts(model):
        args.ddp_find_unused_parameters = False


def has_experts(model: Any) -> bool:
    """Whether some of its modules are experts of a mixture."""
    return any("experts" in name.split(".") for name, _ in model.named_modules())
