"""Checks before and in the first step of a training: 4-bit weights, gradients, packed examples, a fused head."""

import logging
import sys
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from hf_efficient.errors import TrainingCheckError
from hf_efficient.recording.activations import is_compiled, kept_modes, tensors_in

logger = logging.getLogger(__name__)

_NAMED = 5
_OPT_OUT = (
    "If this is intended, switch the check off: check_gradients=False, in a recipe efficiency.check_gradients: false."
)


def keep_four_bit_trainable(model: nn.Module) -> int:
    """Keep bitsandbytes' 4-bit layers trainable on CPUs with AVX512-BF16; returns how many there are. There, the first
    forward in eval mode repacks weights for inference, and a forward through them builds no graph: everything below the
    layer silently gets no gradient. This forbids the repacking, and undoes it: the 4-bit values exactly, their scales
    to bfloat16 precision. Call it before the first evaluation or generation."""
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


_LARGEST_GRAPH = 1000  # nodes looked at; a larger graph is given the benefit of the doubt


def passes_gradient(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
    """Whether differentiable operators lead from an output back to an input, unlike ``requires_grad`` alone."""
    nodes = {tensor.grad_fn for tensor in inputs if tensor.grad_fn is not None}
    leaves = [tensor for tensor in inputs if tensor.grad_fn is None]
    if any(tensor is known for tensor in outputs for known in leaves):
        return True
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting and len(seen) < _LARGEST_GRAPH:
        node = waiting.pop()
        if node in nodes or any(_same_leaf(getattr(node, "variable", None), leaf) for leaf in leaves):
            return True
        if "NotImplemented" in node.name():
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return len(seen) >= _LARGEST_GRAPH


def _same_leaf(variable: torch.Tensor | None, leaf: torch.Tensor) -> bool:
    """Whether this is the leaf, or what saved-tensor hooks made of it: another tensor on the same memory."""
    if variable is None or variable is leaf:
        return variable is not None
    return variable.shape == leaf.shape and variable.untyped_storage()._cdata == leaf.untyped_storage()._cdata


class FourBitGuard(TrainerCallback):
    """``keep_four_bit_trainable`` as a callback, for a plain ``Trainer(callbacks=[FourBitGuard()])``."""

    def on_init_end(self, *_: Any, **kwargs: Any) -> None:
        if kwargs.get("model") is not None:
            keep_four_bit_trainable(kwargs["model"])

    on_train_begin = on_init_end  # a model that ``model_init`` made for this call of ``train()``


class GradientCheck(TrainerCallback):
    """Checks the first optimizer step of every ``train()``; reads no values, synchronises nothing. It raises
    TrainingCheckError out of the training where no trainable parameter of the model, or none of an adapter, has a
    gradient when the optimizer first steps. So it does where a 4-bit layer passes none from its output to its input.
    Single parameters without a gradient (LLaVA's last vision layer) are one warning. Parameters are not checked where
    gradients are elsewhere (DeepSpeed, FSDP, optimizers that step inside the backward); nor layers of compiled
    models."""

    def __init__(self) -> None:
        self._pending = False
        self._handles: list[RemovableHandle] = []
        self._broken: list[str] = []

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        self.remove_hooks()
        self._pending = True

    def on_step_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        model: nn.Module | None = kwargs.get("model")
        if not self._pending or self._handles or model is None or args.torch_compile or is_compiled(model):
            return
        for name, module in model.named_modules():
            is_leaf = next(module.children(), None) is None
            if is_leaf and hasattr(getattr(module, "weight", None), "quant_state"):  # bitsandbytes' Params4bit
                self._handles.append(module.register_forward_hook(_watch(name, self._broken), with_kwargs=True))
        self._handles.append(model.register_forward_hook(lambda *_: self._raise_if_broken()))

    def on_substep_end(self, *_: Any, **kwargs: Any) -> None:
        """Report a layer whose chain broke in a recomputed forward, after the model's own had ended."""
        self._raise_if_broken()

    def on_pre_optimizer_step(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        if not self._pending:
            return
        self._raise_if_broken()
        self.remove_hooks()
        elsewhere = gradients_elsewhere(args)
        if elsewhere:
            logger.debug("Gradients are not checked: with %s they are not on the parameters.", elsewhere)
        elif kwargs.get("model") is not None:
            missing = _require_gradients(kwargs["model"])
            if missing and args.process_index == 0:
                logger.warning(
                    "%s got no gradient in the first step: %s. The loss of that step does not depend on them. If it "
                    "never does, freeze them: requires_grad_(False) saves memory and time.",
                    f"{len(missing)} trainable parameters" if len(missing) > 1 else "1 trainable parameter",
                    _listed(missing),
                )

    def on_train_end(self, *_: Any, **kwargs: Any) -> None:
        self.remove_hooks()

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._broken.clear()
        self._pending = False

    def _raise_if_broken(self) -> None:
        if not self._broken:
            return
        broken = list(self._broken)
        self.remove_hooks()
        raise TrainingCheckError(
            f"{len(broken)} frozen 4-bit layers pass no gradient on to the layers below: {_listed(broken)}. Their "
            "weights were repacked for inference. Call hf_efficient.callbacks.keep_four_bit_trainable(model) before "
            f"the first evaluation or generation. {_OPT_OUT}"
        )


def _watch(name: str, broken: list[str]) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        # Without grad mode nothing requires a gradient: the first pass of reentrant checkpointing, no_grad blocks.
        inputs = [tensor for tensor in _floating((args, kwargs)) if tensor.requires_grad]
        outputs = _floating(output)
        if not torch.is_grad_enabled() or not inputs or not outputs:
            return
        if name not in broken and not passes_gradient(inputs, outputs):
            broken.append(name)

    return hook


def _floating(values: Any) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_in(values) if tensor.is_floating_point()]


def parameters_without_gradient(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]


def _require_gradients(model: nn.Module) -> list[str]:
    """The parameters without a gradient; TrainingCheckError where they are all of the model's or of an adapter's."""
    missing = parameters_without_gradient(model)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    for whole, names in {"this model": trained, **_by_adapter(model, trained)}.items():
        if names and set(missing).issuperset(names):
            raise TrainingCheckError(
                f"No trainable parameter of {whole} got a gradient in the first step ({_listed(names)}): "
                f"the loss does not depend on them. Correct the forward that leaves them out. {_OPT_OUT}"
            )
    return missing


def _by_adapter(model: nn.Module, names: Sequence[str]) -> dict[str, list[str]]:
    """The names that belong to each of PEFT's adapters, without whole modules that it trains (modules_to_save)."""
    own = [f"{name}." for name in names if "modules_to_save" not in name]
    adapters = getattr(model, "peft_config", None) or {}
    return {f"adapter {one!r}": [name[:-1] for name in own if f".{one}." in name] for one in adapters}


def distributed_type() -> str:
    """How accelerate spreads the training over processes: ``MULTI_GPU``, ``FSDP``, ``DEEPSPEED``, ...; ``NO``."""
    from accelerate.state import AcceleratorState, is_initialized

    return str(AcceleratorState().distributed_type.value) if is_initialized() else "NO"


def gradients_elsewhere(args: TrainingArguments) -> str:
    """What keeps gradients away from the parameters; empty where nothing does."""
    distributed = distributed_type()
    if distributed in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
        return distributed
    optimizer = str(getattr(args.optim, "value", args.optim))
    return optimizer if "lomo" in optimizer or "layerwise" in optimizer else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


class PackingCheck(TrainerCallback):
    """Before the first step, compare a packed example's logits with those that it has alone (TrainingCheckError)."""

    _LIMIT = 0.5

    def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        if mixing_ratio(model) > self._LIMIT:
            name = getattr(model.config, "_attn_implementation", None)
            raise TrainingCheckError(
                f"train.packing: with the attention implementation {name!r} packed examples read each other. "
                "Write model.attn_implementation: sdpa (or flash_attention_2 where it is installed), "
                "or train.packing: false."
            )


@torch.no_grad()
def mixing_ratio(model: PreTrainedModel, length: int = 8) -> float:
    """How much of the first example leaks into the second when both are packed: 0 not at all, 1 entirely. The second
    one's logits, packed against alone, in units of the difference that one long example of both would make."""
    tokens = _any_tokens(model, 2 * length)
    alone_positions = torch.arange(length, device=tokens.device)
    with kept_modes(model):
        model.eval()
        alone = _logits(model, tokens[length:], alone_positions)
        packed = _logits(model, tokens, torch.cat([alone_positions, alone_positions]))[length:]
        joined = _logits(model, tokens, torch.arange(2 * length, device=tokens.device))[length:]
    scale = (joined - alone).abs().mean()
    return float((packed - alone).abs().mean() / scale) if scale > 0 else 0.0


def _any_tokens(model: PreTrainedModel, length: int) -> torch.Tensor:
    device = next(parameter.device for parameter in model.parameters())
    vocabulary = int(model.config.get_text_config().vocab_size)
    return (torch.arange(length, device=device) * 7 + 3) % vocabulary


def _logits(model: PreTrainedModel, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    output = model(input_ids=tokens[None], position_ids=positions[None], use_cache=False)
    return output.logits[0].float()


class FusedHeadCheck(TrainerCallback):
    """Before the first step, compare the fused head's log-probabilities with the model's own. Where they differ, raise
    ``TrainingCheckError``, or train with whole logits where ``falls_back``."""

    _LIMIT = 0.1

    def __init__(self, *, falls_back: bool = False) -> None:
        self._falls_back = falls_back

    def on_train_begin(self, args: TrainingArguments, *_: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        if head_error(model) <= self._LIMIT:
            return
        family = model.config.model_type
        fault = f"the fused head of chunked_nll does not compute the logits of {family} as the model does"
        if not self._falls_back:
            raise TrainingCheckError(f"train.loss_type: {fault}. Write `train.loss_type: nll`.")
        logger.warning("train.loss_type: %s; the loss is computed on whole logits (nll).", fault)
        cast("Any", args).loss_type = "nll"


@torch.no_grad()
def head_error(model: PreTrainedModel, smallest_spread: float = 1e-3) -> float:
    """How far the fused log-probabilities of sixteen tokens are from the model's own, in units of their spread."""
    tokens = _any_tokens(model, 16)[None]
    with kept_modes(model):
        model.eval()
        fused = model(input_ids=tokens, labels=tokens, fused_lm_head=True).log_probs[0]
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    own = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    return float((fused - own).abs().mean() / own.std().clamp(min=smallest_spread))
