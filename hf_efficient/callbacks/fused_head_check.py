"""A fused LM head must compute the model's own log-probabilities: one look at the model before the first step."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.errors import TrainingCheckError

__all__ = ["FusedHeadCheck", "head_error"]

_LENGTH = 16
_LIMIT = 0.1
_SMALLEST_SPREAD = 1e-3
"""Of a head whose weights are all zero there is none."""


class FusedHeadCheck(TrainerCallback):
    """Before the first step, compare the log-probabilities of the fused head with those of the model's own logits.

    The fused head projects and scores by itself; it knows the scaling and the capping of logits of many families, and
    computes another loss for a family that does something else, which nothing else shows.

    Raises:
        TrainingCheckError: from ``on_train_begin``, where they differ by more than rounding.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = kwargs["model"]
        if head_error(model) > _LIMIT:
            family = model.config.model_type
            raise TrainingCheckError(
                f"train.loss_type: the fused head of chunked_nll does not compute the logits of {family} as the model "
                "does. Write `train.loss_type: nll`."
            )


@torch.no_grad()
def head_error(model: PreTrainedModel) -> float:
    """How far the fused log-probabilities of sixteen tokens are from the model's own, in units of their spread.

    The model is left in the mode it was in.
    """
    was_training = model.training
    device = next(parameter.device for parameter in model.parameters())
    vocabulary = int(model.config.get_text_config().vocab_size)
    tokens = ((torch.arange(_LENGTH, device=device) * 7 + 3) % vocabulary)[None]
    model.eval()
    try:
        fused = model(input_ids=tokens, labels=tokens, fused_lm_head=True).log_probs[0]
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    finally:
        model.train(was_training)
    own = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    return float((fused - own).abs().mean() / own.std().clamp(min=_SMALLEST_SPREAD))
