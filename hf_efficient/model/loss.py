"""The loss without whole logits (``train.loss_type: chunked_nll``): TRL's fused LM head on a recipe's model.

TRL projects the hidden states through the head tile by tile, keeps a few numbers per token, and projects each tile once
more in the backward. TRL 1.16 does this for every ``SFTTrainer`` and calls ``chunked_nll`` an alias of its ``nll``;
here ``nll`` is the model's own loss, so that the two can be compared.

The fields of ``SFTConfig`` that TRL implements in ``SFTTrainer`` itself, for a trainer that is not one.

A recipe trains with ``EfficientTrainer``; a field that only ``SFTTrainer`` reads would be accepted and do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
import trl.trainer.utils
from torch.nn import functional as F
from trl import SFTConfig
from trl.kernels import chunked_logprob
from trl.models import enable_selective_activation_checkpointing
from trl.trainer import add_fused_lm_head

from hf_efficient.data.sources import replaced
from hf_efficient.errors import ModelError, Problem, RecipeError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

CHUNKED_NLL = "chunked_nll"

_SMALL_TILE = ((chunked_logprob, "TOKEN_CHUNK_SIZE", 1024), (trl.trainer.utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 8192))
"""Tokens, and entries of the vocabulary. With fewer tokens the head's weight is brought to float32 too often."""


def sft_arguments(**options: Any) -> SFTConfig:
    """``SFTConfig``, in which ``loss_type`` stays ``chunked_nll`` where it is: TRL's own rewrites it to ``nll``.

    Raises:
        ValueError, TypeError, ImportError: what ``SFTConfig`` raises.
    """
    chunked = options.get("loss_type") == CHUNKED_NLL
    args = SFTConfig(**{**options, "loss_type": "nll"} if chunked else options)
    if chunked:
        args.loss_type = CHUNKED_NLL
    return args


def fuse_head(model: PreTrainedModel | PeftModel, *, with_top1: bool = False) -> None:
    """Let ``model(..., labels=labels, fused_lm_head=True)`` compute its loss by tiles; other calls stay as they are.

    Args:
        model: adapted already, where it is to be.
        with_top1: whether the output tells where the label is the most likely token, at some cost in every call.

    Raises:
        ModelError: the head's weight is not what is multiplied: it has an adapter, or is quantized.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if isinstance(head, BaseTunerLayer):
        raise _problem(
            "reads the weight of lm_head, and would leave out its adapter", "take lm_head out of the adapter"
        )
    if not isinstance(weight, torch.Tensor) or not weight.is_floating_point():
        raise _problem("needs an LM head with a weight that is not quantized", "quantize the other layers alone")
    base: Any = getattr(model, "get_base_model", lambda: model)()
    add_fused_lm_head(base, outputs=("log_probs", "is_top1") if with_top1 else ("log_probs",))


@contextmanager
def small_tiles() -> Iterator[None]:
    """Within it, forward and backward of the fused head take tiles for a device for which TRL has no kernels.

    TRL's tile of 4,096 tokens and 32,768 entries is made for kernels that work inside it. torch's operators copy it to
    float32 up to seven times, 3.5 GiB, which is more than the whole logits of many a batch.
    """
    with ExitStack() as stack:
        for module, name, value in _SMALL_TILE:
            if hasattr(module, name):
                stack.enter_context(replaced(module, name, value))
        yield


def _problem(why: str, instead: str) -> ModelError:
    return ModelError(f"train.loss_type: {CHUNKED_NLL} {why}; {instead}, or write `train.loss_type: nll`.")


LossFunction = Callable[..., torch.Tensor]


def apply_sft_fields(model: PreTrainedModel | PeftModel, args: SFTConfig) -> None:
    """``router_aux_loss_coef`` and selective activation checkpointing, put where the model and the Trainer read them.

    Raises:
        RecipeError: a router loss for a model without experts; selective checkpointing without checkpointing.
    """
    _router_loss(model, args.router_aux_loss_coef)
    options = args.gradient_checkpointing_kwargs
    if not isinstance(options, dict) or "selective" not in options:
        return
    if options.pop("selective"):
        if not args.gradient_checkpointing or options.get("use_reentrant"):
            raise _sft_fields_problem(
                "train.gradient_checkpointing_kwargs.selective",
                "needs `train.gradient_checkpointing: true` and no `use_reentrant: true`.",
            )
        enable_selective_activation_checkpointing(model)


def objective(args: SFTConfig) -> LossFunction | None:
    """The loss function for the Trainer; None for the model's own, the mean negative log-likelihood."""
    return dft_loss if args.loss_type == "dft" else None


def dft_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor | int | None = None) -> torch.Tensor:
    """Dynamic fine-tuning: each token's negative log-likelihood, weighted by its own (detached) probability.

    Source: https://huggingface.co/papers/2508.05629.

    Args:
        outputs: with ``logits`` of shape (batch, tokens, vocabulary).
        labels: (batch, tokens); -100 bears no loss. Logits at t predict label t+1.
        num_items_in_batch: loss-bearing tokens of the whole optimizer step; default: of these labels.
    """
    logits = outputs.logits[:, :-1].float()
    targets = labels[:, 1:].to(logits.device)
    nll = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none")
    weighted = (nll * torch.exp(-nll).detach()).sum()  # ignored positions have nll 0
    count = (targets != -100).sum() if num_items_in_batch is None else num_items_in_batch
    return weighted / torch.as_tensor(count, device=weighted.device).clamp(min=1)


def _router_loss(model: PreTrainedModel | PeftModel, coefficient: float | None) -> None:
    """The load-balancing loss of a mixture of experts: the model adds it itself where its configuration says so."""
    config = model.config.get_text_config()
    if coefficient and not hasattr(config, "output_router_logits"):
        raise _sft_fields_problem(
            "train.router_aux_loss_coef", "the model has no experts whose load could be balanced."
        )
    if not hasattr(config, "output_router_logits"):
        return
    chosen = getattr(config, "router_aux_loss_coef", 0.0) if coefficient is None else coefficient
    config.router_aux_loss_coef = chosen
    config.output_router_logits = chosen != 0.0


def _sft_fields_problem(key: str, message: str) -> RecipeError:
    return RecipeError([Problem("recipe", key, message)])
