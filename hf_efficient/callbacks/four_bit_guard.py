"""Keeps bitsandbytes' 4-bit layers trainable on CPUs with AVX512-BF16.

There, the first forward in eval mode repacks a layer's weights for inference; a forward through repacked
weights builds no graph, so that from then on everything below the layer silently gets no gradient.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

__all__ = ["FourBitGuard", "keep_four_bit_trainable"]

logger = logging.getLogger(__name__)


def keep_four_bit_trainable(model: nn.Module) -> int:
    """Forbid the repacking on every ``Linear4bit`` of the model, and undo it where it has happened.

    Undoing restores the 4-bit values exactly, their scales only to bfloat16 precision: call this before the
    first evaluation or generation. Safe to call again.

    Returns:
        The number of ``Linear4bit`` layers found; 0 without bitsandbytes.
    """
    bitsandbytes = sys.modules.get("bitsandbytes")
    if bitsandbytes is None:  # a model with its layers would have imported it
        return 0
    layers = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    unpacked = 0
    for layer in layers:
        layer.support_avx512bf16_for_cpu = False
        state = getattr(layer.weight, "quant_state", None)
        if getattr(state, "packing_format_for_cpu", False):
            _unpack(layer.weight, state)
            unpacked += 1
    if unpacked:
        logger.warning(
            "%d 4-bit layers had been repacked for inference by an evaluation or generation before training, "
            "and were unpacked. Their scales were rounded to bfloat16 on the way: to avoid that, build the "
            "trainer (or call keep_four_bit_trainable(model)) before the first forward in eval mode.",
            unpacked,
        )
    return len(layers)


def _unpack(weight: Any, state: Any) -> None:
    from bitsandbytes.functional import _convert_weight_packed_for_cpu_inverse

    weight.data, weight.quant_state = _convert_weight_packed_for_cpu_inverse(weight.data, state)
    if not state.nested and state.absmax.dim() == 2:
        # The inverse leaves the scales transposed where there is no double quantization.
        state.absmax = state.absmax.T.reshape(-1).to(torch.float32)


class FourBitGuard(TrainerCallback):
    """``keep_four_bit_trainable`` as a callback, for a plain ``Trainer(callbacks=[FourBitGuard()])``."""

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Guard the model that the trainer was built with."""
        if model is not None:
            keep_four_bit_trainable(model)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        """Guard a model that ``model_init`` made for this call of ``train()``."""
        if model is not None:
            keep_four_bit_trainable(model)
