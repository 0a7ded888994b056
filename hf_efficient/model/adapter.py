"""A recipe's ``adapter`` on a model, the classes of its layers that FSDP2 wraps, and quantisation-aware training by
torchao: the layers multiply as the quantized model will, and the weights learn it.

A weight's gradient passes the rounding as if there were none (straight-through), unless it is cut to the range. What is
saved are the weights before the rounding, under their own names, for whatever quantizes them: an export, or torchao.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from hf_efficient.errors import ModelError, SetupError, cause
from hf_efficient.recipe.schema import AdapterSection, QatSection
from hf_efficient.recipe.tree import nearest

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def lora_config(section: AdapterSection, *, scores: bool = False) -> LoraConfig:
    """``scores``: of a reward model, whose new head PEFT trains in full and saves."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
        r=section.r,
        lora_alpha=section.alpha,
        lora_dropout=section.dropout,
        target_modules=section.target_modules,
        modules_to_save=section.modules_to_save or None,
        bias=section.bias,
        use_dora=section.dora,
        use_rslora=section.rslora,
    )


def add_adapter(
    model: PreTrainedModel, section: AdapterSection, *, seed: int, checkpointing: bool, on_meta: bool = False
) -> PreTrainedModel | PeftModel:
    """The model as it is trained: unchanged for ``method: full``, wrapped by PEFT otherwise. The adapter's weights are
    float32, PEFT's default: a learning rate of 1e-4 moves a bfloat16 weight by less than its last digit. For activation
    checkpointing the embedding's output requires a gradient. ``on_meta`` leaves the adapter there, without values.
    Raises ``ModelError``: no module has a name in ``target_modules`` or ``modules_to_save``."""
    if section.method == "full":
        return model
    from peft import get_peft_model
    from transformers import set_seed

    set_seed(seed)
    names = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules() if name}
    if missing := sorted(set(section.modules_to_save) - names):
        usual = sorted(names & {"embed_tokens", "lm_head", "norm"}) or sorted(names)[:8]
        raise ModelError(
            f"adapter.modules_to_save: the model has no module {', '.join(missing)}. "
            f"Among its modules are: {', '.join(usual)}."
        )
    config = lora_config(section, scores="ForSequenceClassification" in type(model).__name__)
    try:
        with warnings.catch_warnings():
            # PEFT doubles the rank of fused experts, and looks for them among modules alone.
            warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern keys did not match")
            adapted = get_peft_model(model, config, low_cpu_mem_usage=on_meta)
    except (ValueError, re.error) as error:
        if "lora_dropout" in str(error) and section.dropout:
            raise ModelError(
                f"adapter.dropout: is {section.dropout}, and PEFT has no dropout for weights of no linear layer of "
                "their own (the experts of this model). Write `adapter.dropout: 0`."
            ) from error
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        raise ModelError(
            f"adapter.target_modules: {section.target_modules!r} does not fit this model: {cause(error)} "
            f"Write all-linear, or some of: {', '.join(sorted({name.rsplit('.', 1)[-1] for name in linear}))}."
        ) from error
    if section.method == "qlora":
        from hf_efficient.model.four_bit_experts import adapt_experts

        adapt_experts(adapted)
    if section.fused is True:
        from hf_efficient.model.fast_layers import fuse_lora, fuse_norms

        fuse_norms(adapted)
        fused, left = fuse_lora(adapted)
        for reason, count in left.items():
            logger.warning("adapter.fused: %d of %d LoRA layers stay PEFT's own: %s.", count, count + fused, reason)
    if checkpointing:
        adapted.enable_input_require_grads()
    return adapted


def check_wrap_classes(model: Any, classes: Sequence[str] | None) -> None:
    """Refuse, with ``ModelError``, a class of ``distributed.wrap_classes`` that the model does not have."""
    every = {type(module).__name__ for module in model.modules()} if classes else set()
    missing = next((name for name in classes or () if name not in every), None)
    if missing is None:
        return
    there = _layer_classes(model)
    meant = nearest(missing, there)
    remedy = f"Did you mean {meant}? " if meant is not None else ""
    fault = f"distributed.wrap_classes: {missing} is no class of a layer of this model."
    raise ModelError(f"{fault} {remedy}Its own: {', '.join(there)}.")


def _layer_classes(model: Any) -> list[str]:
    """Those that a model's class says not to split, then the others that hold layers, in the order of the model."""
    own = [name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()]
    parts = [
        type(module).__name__
        for module in model.modules()
        if any(module.children()) and type(module).__module__.partition(".")[0] not in ("torch", "peft")
    ]
    here = {type(module).__name__ for module in model.modules()}
    return list(dict.fromkeys([*(name for name in own if name in here), *parts]))


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
