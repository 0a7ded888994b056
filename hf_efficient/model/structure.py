"""What a live model is made of, held against its configuration; and which parameters of it are trained."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.model_shape import ModelShape, Trained, head_linear, layer_of, linears_of_layer, shape_of


def whole_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter: of a DTensor of FSDP2 its own, under ZeRO-3 ``ds_shape``."""
    return getattr(parameter, "ds_shape", parameter.shape)


def whole_count(model: nn.Module, *, trained: bool) -> int:
    """Numbers in all parameters, or in those that are trained; a packed 4-bit weight counts as it is stored."""
    counted = [one for one in model.parameters() if one.requires_grad or not trained]
    return sum(whole_shape(one).numel() for one in counted)


_WRAPPED = ("base_layer", "original_module", "modules_to_save")


def base_model(model: nn.Module) -> Any:
    inner = getattr(model, "get_base_model", None)
    return model if inner is None else inner()


def shape_of_model(model: nn.Module) -> ModelShape:
    """The shape that the configuration describes, held against the model's linear layers. Raises ``ModelError``: the
    architecture is not known, or linear layers or the head are not as its configuration describes."""
    base = base_model(model)
    config = getattr(base, "config", None)
    if config is None:
        raise ModelError(f"{type(base).__name__}: it has no configuration to know its FLOPs from.")
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    shape = shape_of(text)
    _check(shape, linear_modules(base))
    return shape


def linear_modules(base: nn.Module) -> dict[str, tuple[int, int]]:
    """Features in and out of every linear layer by its dotted name; adapters, and what they wrap, are left out."""
    found: dict[str, tuple[int, int]] = {}
    for name, module in base.named_modules():
        sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
        parts = name.split(".")
        kept = [part for part in parts if part not in _WRAPPED]
        if any(part.startswith("lora_") for part in parts):
            continue
        if "modules_to_save" in parts:
            kept = kept[:-1]  # the adapter's name
        if isinstance(sizes[0], int) and isinstance(sizes[1], int):
            found.setdefault(".".join(kept), (sizes[0], sizes[1]))
    return found


def _check(shape: ModelShape, modules: dict[str, tuple[int, int]]) -> None:
    expected: dict[tuple[int | None, str], tuple[int, int]] = {}
    for layer in range(shape.layers):
        for linear in linears_of_layer(shape, layer).values():
            if linear.is_module:
                expected[layer, linear.name] = linear.inputs, linear.outputs
    head = head_linear(shape)
    expected[None, head.name] = head.inputs, head.outputs
    for name, sizes in modules.items():
        if expected.pop((layer_of(name), name.rsplit(".", 1)[-1]), None) != sizes:
            raise ModelError(
                f"{name}: a linear layer of {sizes[0]} to {sizes[1]} features is not what a {shape.model_type} model "
                "of this configuration has; its FLOPs are not known."
            )
    if expected:
        where, missing = next(iter(expected))
        place = "" if where is None else f" in layer {where}"
        raise ModelError(f"{missing}: the model has no such linear layer{place}; its FLOPs are not known.")


# The hooks on the embedding by which transformers and PEFT make its output ask for a gradient.
_GRADIENT_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")


def trained_of(model: nn.Module, shape: ModelShape) -> Trained:
    """What a training step computes gradients for; ``ModelError``: neither full training nor LoRA on known modules."""
    matrices = [one.requires_grad for one in model.parameters() if len(whole_shape(one)) > 1]
    if not matrices:
        raise ModelError("its weights are flattened by sharding: which of them are trained is not known.")
    if all(matrices):
        return Trained.full()
    adapted = list(_adapters(model))
    ranks = {name: rank for name, rank, _ in adapted if rank is not None}
    saved = [name for name, rank, _ in adapted if rank is None]
    explained = {id(one) for _, _, parameters in adapted for one in parameters}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in explained:
            known = "FLOPs are known of full training and of LoRA alone"
            raise ModelError(f"{name} is trained beside frozen weights; {known}.")
    base = base_model(model)
    hooks = base.get_input_embeddings()._forward_hooks.values()
    asked = any(getattr(hook, "__name__", "") in _GRADIENT_HOOKS for hook in hooks)
    trained = Trained.of_modules(shape, ranks, modules_to_save=saved, input_gradient=asked)
    # With tied embeddings PEFT may train a copy of one of the two alone.
    inputs, outputs = base.get_input_embeddings().weight, base.get_output_embeddings().weight
    return dataclasses.replace(trained, embedding=inputs.requires_grad, head=outputs.requires_grad)


def adapter_of(model: nn.Module, shape: ModelShape, adapter: str) -> Trained:
    """The LoRA adapter of this name, active and trained or not; ``ModelError``: no plain LoRA on known modules."""
    if "peft" not in sys.modules:
        return Trained.of_modules(shape, {})
    from peft.tuners.tuners_utils import BaseTunerLayer

    tuned = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    held = {name: _ranks(name, module, (adapter,)) for name, module in tuned}
    return Trained.of_modules(shape, {name: ranks[adapter] for name, ranks in held.items() if ranks})


def _adapters(model: nn.Module) -> Iterator[tuple[str, int | None, list[nn.Parameter]]]:
    """Name, rank (None where it is trained in full) and own parameters of each adapted module."""
    if "peft" not in sys.modules:  # which a model with adapters would have imported
        return
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper

    for name, each in model.named_modules():
        module: Any = each
        if isinstance(each, BaseTunerLayer):
            active = _ranks(name, module, module.active_adapters)
            if module.disable_adapters or module.merged:
                raise ModelError(f"{name}: its adapter is switched off or merged.")
            for adapter in active:
                if not (module.lora_A[adapter].weight.requires_grad and module.lora_B[adapter].weight.requires_grad):
                    raise ModelError(f"{name}: its adapter {adapter!r} is active and frozen.")
            if active:
                # A bias costs no product, and what is above the adapter asks for gradients anyway.
                own = [one for part, one in module.named_parameters() if "lora_" in part or one.ndim == 1]
                yield name, sum(active.values()), own
        elif isinstance(each, ModulesToSaveWrapper):
            yield name, None, list(module.parameters())
        elif isinstance(each, AuxiliaryTrainingWrapper):
            raise ModelError(f"{name}: what a {type(module).__name__} computes is not known here.")


def _ranks(name: str, module: Any, adapters: Iterable[str]) -> dict[str, int]:
    """Adapter to rank, of those that the module has; several at once cost as much as one of their ranks' sum."""
    from peft.tuners.lora import Linear, LoraLayer

    plain = isinstance(module, LoraLayer) and isinstance(getattr(module, "lora_A", None), nn.ModuleDict)
    quantized = type(module).__name__ in ("Linear4bit", "Linear8bitLt")  # classes that exist with bitsandbytes alone
    if not plain or not (isinstance(module, Linear) or quantized):
        raise ModelError(f"{name}: what an adapter of {type(module).__name__} computes is not known here.")
    held, variants = [one for one in adapters if one in module.lora_A], getattr(module, "lora_variant", {})
    if variant := next(filter(None, map(variants.get, held)), None):
        raise ModelError(f"{name}: what LoRA as a {type(variant).__name__} computes is not known here.")
    return {adapter: int(module.r[adapter]) for adapter in held}
