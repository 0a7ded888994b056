"""Quantisation-aware training by torchao: the layers multiply as the quantized model will, and the weights learn it.

A weight's gradient passes the rounding as if there were none (straight-through), unless it is cut to the range. What is
saved are the weights before the rounding, under their own names, for whatever quantizes them: an export, or torchao.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from hf_efficient.errors import ModelError, SetupError, cause
from hf_efficient.recipe.schema import QatSection

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def round_in_training(model: PreTrainedModel, section: QatSection) -> int:
    """Put torchao's fake quantizers into all linear layers but the head; how many. ``SetupError``: no torchao;
    ``ModelError``: a layer's inputs are no multiple of the group."""
    try:
        import torch
        from torchao.quantization import quantize_
        from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig
    except ImportError as error:
        why = f"needs the package torchao ({cause(error)}); run `pip install 'hf-efficient[qat]'`"
        raise SetupError(f"model.qat: {why}, or remove the section.") from error
    head: Any = model.get_output_embeddings()
    chosen = {name: one for name, one in model.named_modules() if isinstance(one, nn.Linear) and one is not head}
    for name, one in chosen.items():
        if one.in_features % section.group_size:
            raise ModelError(
                f"model.qat.group_size: is {section.group_size}, which does not divide the {one.in_features} inputs of "
                f"{name}. Write a divisor of it, for instance 32."
            )
    weights = getattr(torch, f"int{section.bits}")
    rounded = IntxFakeQuantizeConfig(weights, group_size=section.group_size, is_symmetric=True)
    inputs = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False) if section.activations else None
    config = QATConfig(activation_config=inputs, weight_config=rounded, step="prepare")
    quantize_(model, config, lambda one, name: name in chosen)
    return len(chosen)
