"""Software of the machine that a run is planned for, which need not be on this one: attention kernels and Liger's."""

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash
from transformers.loss import loss_utils
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.facts.environment import replaced, replaced_item
from hf_efficient.facts.tables import Accelerator, key_table
from hf_efficient.recipe.rules.settings import Settings, all_hold
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate import liger
from hf_efficient.simulate.decompositions import flash_attn_func, flash_attn_varlen_func

FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")
"""They save and return the same shapes."""
FLEX = "flex_attention"
_OWN = (None, "auto", "documents", "sdpa", "eager")
_LIGER_MODELS = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2"),
    *("granite", "smollm3"),
)
"""``model_type`` of those whose layers Liger replaces one by one as below."""


@contextmanager
def attention_kernels(name: str | None) -> Iterator[None]:
    """Within, transformers takes FlashAttention and flex attention for installed, and runs what stands in for them."""
    with ExitStack() as stack:
        if name in (*FLASH, FLEX):
            stack.enter_context(replaced(flash, "lazy_import_flash_attention", _stand_ins))
        if name in FLASH:
            stack.enter_context(
                replaced(PreTrainedModel, "_check_and_adjust_attn_implementation", _taken_for_installed)
            )
        elif name == FLEX:  # it saves and returns what FlashAttention does; its block mask is small
            kernel = ALL_ATTENTION_FUNCTIONS["flash_attention_2"]
            stack.enter_context(replaced_item(ALL_ATTENTION_FUNCTIONS, FLEX, kernel))
            stack.enter_context(replaced_item(ALL_MASK_ATTENTION_FUNCTIONS, FLEX, flash_attention_mask))
        yield


def _taken_for_installed(model: Any, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str | None:
    if attn_implementation in FLASH and not model._supports_flash_attn:
        raise ModelError(
            f"model.attn_implementation: transformers has no {attn_implementation} for {type(model).__name__}. "
            "Write sdpa or eager."
        )
    return attn_implementation


def _stand_ins(implementation: str | None, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], tuple[Any, Any]]:
    process = flash._lazy_define_process_function(flash_attn_varlen_func)
    functions = (flash_attn_func, flash_attn_varlen_func, None, flash._pad_input, flash._unpad_input)
    return functions, (process, dict)


@contextmanager
def liger_kernels(recipe: Recipe, model: Any) -> Iterator[None]:
    """Within, the model computes as with ``train.use_liger_kernel``, on what stands in for Liger's kernels. Raises
    ``ModelError``: Liger's layers for this architecture are not known here."""
    if not recipe.train.get("use_liger_kernel"):
        yield
        return
    base: Any = getattr(model, "get_base_model", lambda: model)()
    kind = base.config.get_text_config().model_type
    if kind not in _LIGER_MODELS:
        raise ModelError(
            f"train.use_liger_kernel: Liger's kernels for {kind} are not planned. Plan train.use_liger_kernel=false as "
            "an upper bound."
        )
    wanted = _wanted(recipe.train.get("liger_kernel_config") or {})
    with ExitStack() as stack:
        for module in base.modules():
            if wanted["rms_norm"] and type(module).__name__.endswith("RMSNorm"):
                module.forward = types.MethodType(lambda self, values: liger.RmsNorm.apply(values, self.weight), module)
            elif wanted["swiglu"] and hasattr(module, "gate_proj") and hasattr(module, "up_proj"):
                module.forward = types.MethodType(_gated, module)
        if wanted["rope"]:
            layers = sys.modules[type(base).__module__]
            if hasattr(layers, "apply_rotary_pos_emb"):
                rope = liger.Rope.apply
                stack.enter_context(replaced(layers, "apply_rotary_pos_emb", lambda *given, **_: rope(*given[:4])))
        if wanted["fused_linear_cross_entropy"]:
            _fuse_head(base)
        elif wanted["cross_entropy"]:
            loss = liger.CrossEntropy.apply
            stack.enter_context(replaced(loss_utils, "fixed_cross_entropy", lambda source, *_, **__: loss(source)))
        yield


_DEFAULTS = {"rope": True, "swiglu": True, "rms_norm": True, "cross_entropy": False, "fused_linear_cross_entropy": True}
"""Of ``liger_kernel.transformers.monkey_patch.apply_liger_kernel_to_llama`` and its siblings."""


def _wanted(config: Mapping[str, Any]) -> dict[str, bool]:
    names = {"geglu": "swiglu"}
    given = {names.get(name, name): bool(value) for name, value in config.items()}
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        raise SetupError(
            f"train.liger_kernel_config: Liger has no kernel {unknown[0]}. Write some of: {', '.join(_DEFAULTS)}."
        )
    return {**_DEFAULTS, **given}


def _gated(module: Any, values: torch.Tensor) -> Any:
    return module.down_proj(liger.GatedProduct.apply(module.gate_proj(values), module.up_proj(values)))


def _fuse_head(base: Any) -> None:
    """In training the head hands on the hidden states, and the loss takes head and cross-entropy together."""
    head = base.get_output_embeddings()
    plain, plain_loss = head.forward, base.loss_function

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        return hidden if base.training else plain(hidden)

    def loss(logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not base.training:
            return plain_loss(logits, *args, **kwargs)
        return liger.FusedLinearCrossEntropy.apply(logits.flatten(0, -2), head.weight)

    head.forward, base.loss_function = forward, loss


_MADE_FOR: Mapping[str, tuple[range, str]] = {
    "flash_attention_2": (range(8, 13), "an Ampere GPU or a later one"),
    "flash_attention_3": (range(9, 10), "a Hopper GPU"),
    "flash_attention_4": (range(9, 11), "a Hopper or Blackwell GPU"),
}
"""Major compute capabilities, as the README of flash-attention (2.8) names the GPUs."""


def unsuited(attention: str | None, device: Accelerator) -> str | None:
    """Why an accelerator cannot run an attention kernel, and what to write; None where it can, or nobody knows."""
    capability = device.compute_capability
    if capability is None or attention not in FLASH:
        return None
    majors, made_for = _MADE_FOR[attention]
    if capability[0] in majors:
        return None
    instead = "sdpa" if capability[0] < _MADE_FOR["flash_attention_2"][0][0] else "flash_attention_2"
    return f"model.attn_implementation: {attention} needs {made_for}, which {device.name} is not. Write {instead}."


def check_attention(name: str | None) -> None:
    """Refuse, with ``SetupError``, an attention kernel that no machine has."""
    if name not in (*_OWN, *FLASH, FLEX):
        raise SetupError(
            f"model.attn_implementation: {name} is no attention kernel that can be planned. Write one of sdpa, eager, "
            f"documents, {', '.join(FLASH)}, {FLEX}."
        )


def target_remarks(recipe: Recipe) -> Iterator[str]:
    """What a plan takes for granted by the recipe alone, of the target machine and of what is simulated."""
    settings = Settings(recipe, {})  # the table's fields are all off by default; their classes may not be installed
    for row in key_table("plan_words")["taken_for_granted"]:
        if all_hold(row["when"], settings.value):
            yield settings.filled(row["text"])
