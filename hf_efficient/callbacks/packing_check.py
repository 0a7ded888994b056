"""Packed examples must not see each other: one look at the model before the first step."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_efficient.errors import TrainingCheckError

__all__ = ["PackingCheck", "mixing_ratio"]

_LENGTH = 8
_LIMIT = 0.5


class PackingCheck(TrainerCallback):
    """Before the first step, compare a packed example's logits with those that it has alone.

    Packed batches carry no attention mask, only position ids that start again at each example; an attention
    implementation that ignores them lets every example read the ones packed before it, and nothing else shows it.

    Raises:
        TrainingCheckError: from ``on_train_begin``, where the examples are mixed.
    """

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model = kwargs["model"]
        if mixing_ratio(model) > _LIMIT:
            name = getattr(model.config, "_attn_implementation", None)
            raise TrainingCheckError(
                f"train.packing: with the attention implementation {name!r} packed examples read each other. "
                "Write model.attn_implementation: sdpa (or flash_attention_2 where it is installed), "
                "or train.packing: false."
            )


@torch.no_grad()
def mixing_ratio(model: PreTrainedModel) -> float:
    """How much of the first example leaks into the second when both are packed: 0 not at all, 1 entirely.

    Two examples of eight tokens: the second one's logits when it is packed behind the first, against those when it is
    alone, in units of the difference that one long example of both would make. The model is left in the mode it was in.
    """
    was_training = model.training
    device = next(parameter.device for parameter in model.parameters())
    vocabulary = int(model.config.get_text_config().vocab_size)
    tokens = (torch.arange(2 * _LENGTH, device=device) * 7 + 3) % vocabulary
    alone_positions = torch.arange(_LENGTH, device=device)
    model.eval()
    try:
        alone = _logits(model, tokens[_LENGTH:], alone_positions)
        packed = _logits(model, tokens, torch.cat([alone_positions, alone_positions]))[_LENGTH:]
        joined = _logits(model, tokens, torch.arange(2 * _LENGTH, device=device))[_LENGTH:]
    finally:
        model.train(was_training)
    scale = (joined - alone).abs().mean()
    return float((packed - alone).abs().mean() / scale) if scale > 0 else 0.0


def _logits(model: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    output = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    return output.logits[0].float()
