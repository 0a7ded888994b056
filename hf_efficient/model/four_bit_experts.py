"""The experts of a mixture in 4 bits, which bitsandbytes packs in linear layers alone.

transformers keeps all experts of a layer in two weights of three dimensions. Each is packed as it loads, and unpacked
whole where it multiplies: once in the forward, once more in the backward. LoRA on them is computed beside, from its
factors; PEFT would add their product to the weight.

    y = x W' + s (x A') B'          dx = dy W + s (dy B) A          for the rows of each expert
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.bitsandbytes import Bnb4bitQuantize
from transformers.quantizers import auto
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name

from hf_efficient.facts.environment import replaced_item

_WEIGHTS = ("gate_up_proj", "down_proj")
_ALIGNED = 16  # bytes that a row of a grouped product must be a multiple of


def experts_are_packed() -> AbstractContextManager[None]:
    """Within, transformers' quantizer for 4 bits packs experts too."""
    return replaced_item(auto.AUTO_QUANTIZER_MAPPING, "bitsandbytes_4bit", _Quantizer)


def four_bit_experts(model: nn.Module) -> Iterator[tuple[nn.Module, FourBitExperts]]:
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, FourBitExperts):
            yield module, forward


def adapt_experts(model: nn.Module) -> None:
    """Let PEFT's adapters of packed experts give their factors to the experts' own forward."""
    experts = {id(module): forward for module, forward in four_bit_experts(model)}
    if not experts:
        return
    from peft.tuners.lora.layer import ParamWrapper

    for module in model.modules():
        if isinstance(module, ParamWrapper) and id(module.get_base_layer()) in experts:
            experts[id(module.get_base_layer())].adapters[module.parameter_name] = module
            vars(module)["forward"] = module.base_layer.__call__


class FourBitExperts:
    """The forward of a layer's experts: what transformers' ``grouped_mm`` computes (5.23, ``integrations/moe.py``).
    ``config``: a ``BitsAndBytesConfig``. ``adapters``: PEFT's, by the name of the weight."""

    def __init__(self, module: nn.Module, config: Any) -> None:
        self._module: Any = module
        self.config = config
        self.adapters: dict[str, Any] = {}

    def __call__(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """``hidden`` is (tokens, width); ``chosen`` and ``weights``, of each token's experts, (tokens, experts)."""
        experts, order = torch.sort(chosen.reshape(-1))
        numbers = experts.float() if hidden.device.type == "cpu" else experts.int()  # what histc has kernels for
        count = self._module.num_experts
        ends = torch.histc(numbers, bins=count, min=0, max=count - 1).cumsum(0, dtype=torch.int32)
        rows = self._module._apply_gate(self._product("gate_up_proj", hidden[order // chosen.size(-1)], ends))
        rows = self._product("down_proj", rows, ends) * weights.reshape(-1)[order].unsqueeze(-1)
        places = torch.empty_like(order)
        places[order] = torch.arange(order.size(0), device=order.device)
        return rows[places].view(*chosen.shape, hidden.size(-1)).sum(dim=1).to(hidden.dtype)

    def _product(self, name: str, rows: Tensor, ends: Tensor) -> Tensor:
        rows = rows.to(self.config.bnb_4bit_compute_dtype)
        out = _Unpacked.apply(rows, getattr(self._module, name), ends)
        adapter = self.adapters.get(name)
        if adapter is None or adapter.disable_adapters:
            return out
        for active in adapter.active_adapters:
            if active in adapter.lora_A:
                a, b = _factors(adapter, active, rows.dtype)
                out = out + adapter.scaling[active] * _grouped(_grouped(rows, a, ends), b, ends)
        return out


def _factors(adapter: Any, name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A as (experts, in, r) and B as (experts, r, out), of the two matrices that PEFT holds for all experts."""
    a, b = adapter.lora_A[name].weight.to(dtype), adapter.lora_B[name].weight.to(dtype)
    rank = adapter.r[name]
    return (a.view(-1, rank, a.size(-1)).transpose(-2, -1), b.view(b.size(0), rank, -1).permute(2, 1, 0).contiguous())


def _grouped(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """``rows`` (rows, in), sorted by expert, times ``weight`` (experts, in, out)."""
    if any(width * rows.element_size() % _ALIGNED for width in weight.shape[1:]):
        return torch.ops.transformers.grouped_mm_fallback(rows, weight, offs=ends)
    from transformers.integrations.moe import _grouped_mm  # not in the older versions that plan other models

    return _grouped_mm(rows, weight, offs=ends)


def _unpacked(weight: Any, dtype: torch.dtype) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(weight.data, weight.quant_state).to(dtype)


class _Unpacked(torch.autograd.Function):
    """The product with a packed weight, which alone is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Any, ends: Tensor) -> Tensor:
        ctx.save_for_backward(ends)
        ctx.weight = weight
        return _grouped(rows, _unpacked(weight, rows.dtype).transpose(-2, -1), ends)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        (ends,) = ctx.saved_tensors
        return _grouped(grads[0].contiguous(), _unpacked(ctx.weight, grads[0].dtype), ends), None, None


class _Quantizer(Bnb4BitHfQuantizer):
    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        is_packed = name in _WEIGHTS and isinstance(vars(module).get("forward"), FourBitExperts)
        return is_packed or super().param_needs_quantization(model, param_name, **kwargs)

    def get_quantize_ops(self) -> _Pack:
        return _Pack(self)

    def _process_model_before_weight_loading(self, model: Any, device_map: Any = None, **kwargs: Any) -> None:
        super()._process_model_before_weight_loading(model, device_map=device_map, **kwargs)
        # FSDP2 shards weights by their rows, and packed ones have none of their experts.
        if self.pre_quantized or self.quantization_config.bnb_4bit_quant_storage != torch.uint8:
            return
        for module in model.modules():
            if _is_plain(module):
                vars(module)["forward"] = FourBitExperts(module, self.quantization_config)

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        for module, _ in list(four_bit_experts(model)):
            for name in _WEIGHTS:
                weight: Any = getattr(module, name)
                dense = _unpacked(weight, dtype or weight.quant_state.dtype)
                setattr(module, name, nn.Parameter(dense, requires_grad=False))
            del module.forward
        return super()._dequantize(model, dtype)


def _is_plain(module: nn.Module) -> bool:
    """Experts as Mixtral and Qwen have them: (experts, out, in), gated, without biases."""
    held = vars(module)
    others = ("is_transposed", "has_bias", "has_post_expert_norm")
    return (
        held.get("has_gate") is True
        and not any(held.get(name) for name in others)
        and all(getattr(module._parameters.get(name), "ndim", 0) == 3 for name in _WEIGHTS)
    )


class _Pack(Bnb4bitQuantize):
    def convert(self, input_dict: Any, *args: Any, **kwargs: Any) -> Any:
        packed = {}
        for full_name, values in input_dict.items():
            module, name = get_module_from_name(kwargs["model"], full_name)
            forward = vars(module).get("forward")
            if isinstance(forward, FourBitExperts) and name in _WEIGHTS:
                value = values[0] if isinstance(values, list) else values
                packed[full_name] = _packed(value, forward.config)
        return packed or super().convert(input_dict, *args, **kwargs)


def _packed(value: Tensor, config: Any) -> Any:
    from bitsandbytes.nn import Params4bit

    weight: Any = Params4bit(
        value,
        requires_grad=False,
        compress_statistics=config.bnb_4bit_use_double_quant,
        quant_type=config.bnb_4bit_quant_type,
    )
    weight = weight.to(value.device)
    weight.ds_shape = value.shape  # where PEFT looks for the shape of a weight that is stored in another one
    return weight
