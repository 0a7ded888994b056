"""The FLOPs of a trainer's steps, and the peak that they are held against: looked at once, when training begins."""

import dataclasses
import functools
import inspect
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.flops import Checkpointing, Coefficients, Head, Kernel, WorkFormula, coefficients
from hf_efficient.estimate.model_shape import ModelShape, Trained, layer_of
from hf_efficient.model.peak import Peak, accelerators_of, matmul_dtype, peak_of
from hf_efficient.model.structure import adapter_of, base_model, shape_of_model, trained_of
from hf_efficient.recording.holders import is_wrapped


def kernel_of(model: nn.Module, device_type: str) -> Kernel:
    """Which pairs of query and key the attention computes in training there; ``ModelError``: unknown."""
    config = base_model(model).config.get_text_config()
    name = getattr(config, "_attn_implementation", None)
    if name == "eager":
        return "square"
    if name == "sdpa":
        # torch's fused kernel for CPUs knows no dropout; in its place plain products are computed, and masked.
        plain = device_type == "cpu" and getattr(config, "attention_dropout", 0.0) > 0
        return "square" if plain else "sdpa"
    if isinstance(name, str) and ("flash" in name or name in ("flex_attention", "documents")):
        return "documents"
    raise ModelError(f"attention implementation {name!r}: which pairs it computes is not known here.")


def checkpointing_of(model: nn.Module) -> tuple[Checkpointing, Collection[int] | None]:
    """The way of activation checkpointing, and its layers (None: all); ``ModelError``: selective, or somebody's own."""
    layers: dict[int, Any] = {}
    for name, module in base_model(model).named_modules():
        if type(module).__name__ == "CheckpointWrapper":  # torch's, which FSDP's activation checkpointing puts in
            raise ModelError(f"{name}: what FSDP's activation checkpointing computes again is not known here.")
        layer = layer_of(name)
        if layer is not None and name.endswith(f"layers.{layer}"):
            layers[layer] = module
    on = {layer for layer, module in layers.items() if getattr(module, "gradient_checkpointing", False)}
    if not on:
        return "none", None
    ways = {_way(layers[layer]) for layer in on}
    if len(ways) > 1:
        raise ModelError("activation checkpointing: its layers do it in different ways.")
    return ways.pop(), None if len(on) == len(layers) else frozenset(on)


def _way(layer: Any) -> Checkpointing:
    function = getattr(layer, "_gradient_checkpointing_func", None)
    if not isinstance(function, functools.partial):
        raise ModelError("activation checkpointing: what a function of its own computes again is not known here.")
    if function.keywords.get("context_fn") is not None:
        raise ModelError("activation checkpointing: what the selective way computes again is not known here.")
    reentrant = function.keywords.get("use_reentrant")
    if reentrant is None:
        raise ModelError("activation checkpointing: gradient_checkpointing_kwargs does not say use_reentrant.")
    return "reentrant" if reentrant else "non_reentrant"


_METHODS = ("compute_loss", "_compute_loss", "training_step")
_OF_TRL = ("trl.trainer.base_trainer", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer")
_WHOLE_LOGITS = ("trl.experimental.orpo.", "trl.experimental.cpo.")
"""TRL's trainers that run the model once for both answers, and hold its logits as ``Trainer`` does."""
_KNOWN = ("transformers.trainer", *_OF_TRL, *_WHOLE_LOGITS, "hf_efficient.")


@dataclass(frozen=True)
class Objective:
    """How the loss comes about. ``reference`` runs its forward alone on every batch: another model; ``base``, the
    trained one with its adapter off; ``ref``, the same with the adapter of that name; None without."""

    head: Head = "everywhere"  # the positions that the LM head projects
    head_recomputed: bool = False  # the backward projects them once more
    reference: nn.Module | Literal["base", "ref"] | None = None


def objective_of(trainer: Any) -> tuple[Objective, str | None]:
    """The objective of transformers' ``Trainer``, TRL's ``SFTTrainer`` and ``DPOTrainer``, and what is built on them;
    ``chunked_loss``: a recipe's, with TRL's fused head. With it the name of a method of the user's own, which is taken
    to run the model once (see ``ForwardCount``). Raises ``ModelError``: another trainer."""
    own, calls_below = _own_method(trainer)
    names = {kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")}
    if own is not None and not calls_below:
        if "DPOTrainer" in names:
            raise ModelError(f"{own}: how often it runs the reference model is not known.")
        return Objective(), own
    if "SFTTrainer" in names:
        if trainer.compute_loss_func is not None or trainer.label_smoother is not None:
            raise ModelError("SFTTrainer runs the model twice for compute_loss_func and label_smoothing_factor.")
        return Objective(_fused_head(trainer), head_recomputed=True), own
    if "DPOTrainer" in names:
        return _preference(trainer), own
    if getattr(trainer, "chunked_loss", False):
        recomputed = has_fused_kernels(trainer.args.device) or _head_is_trained(trainer)
        return Objective("scored", head_recomputed=recomputed), own
    return Objective(), own


def _head_is_trained(trainer: Any) -> bool:
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    return any(parameter.requires_grad for parameter in model.get_output_embeddings().parameters())


def _own_method(trainer: Any) -> tuple[str | None, bool]:
    """Which method of the loss is the user's, and whether what is below it runs too. ``ModelError``: a library's."""
    own, calls_below = None, True
    for method in _METHODS:
        replaced = vars(trainer).get(method)
        if replaced is not None and not is_wrapped(replaced):
            raise ModelError(f"{method} was replaced on the trainer: how often it runs the model is not known.")
        for kind in type(trainer).__mro__:  # in the order in which super() goes
            if method not in vars(kind) or kind.__module__.startswith(_KNOWN):
                continue
            name = f"{kind.__name__}.{method}"
            if kind.__module__.startswith("trl.") or trainer.args.torch_compile:
                raise ModelError(
                    f"{name}: how often it runs the model is not known; FLOPs are counted for the steps of Trainer, "
                    "SFTTrainer and DPOTrainer, and for methods of your own without torch_compile."
                )
            own = own or name
            calls_below = calls_below and "super" in _names_in(vars(kind)[method])
    return own, calls_below


def _names_in(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else code.co_names


def _preference(trainer: Any) -> Objective:
    head = _fused_head(trainer)
    if trainer.precompute_ref_logps:
        return Objective(head, head_recomputed=True)
    if trainer.ref_model is not None:
        return Objective(head, head_recomputed=True, reference=trainer.accelerator.unwrap_model(trainer.ref_model))
    own: Literal["base", "ref"] = "ref" if "ref" in getattr(trainer.model, "peft_config", {}) else "base"
    return Objective(head, head_recomputed=True, reference=own)


def _fused_head(trainer: Any) -> Head:
    return "scored" if has_fused_kernels(trainer.args.device) else "shifted"


def has_fused_kernels(device: torch.device) -> bool:
    """Whether TRL's fused head runs on Triton there, for scored positions alone; elsewhere it projects all but each
    row's last."""
    from transformers.utils import is_triton_available

    return device.type in ("cuda", "xpu") and is_triton_available()


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What is known of a trainer's work; without a formula of its FLOPs, or of the hardware's beyond them, a reason.
    ``accelerators`` are those of this process; ``own_loss`` is a method of the user's, taken to run the model once."""

    formula: WorkFormula | None
    reason: str | None = None
    hardware_reason: str | None = None
    peak: Peak = field(default_factory=Peak)
    dtype: str | None = None
    accelerators: int = 1
    own_loss: str | None = None

    def facts(self) -> dict[str, Any]:
        peak = {f"peak_{name}": value for name, value in dataclasses.asdict(self.peak).items()}
        own = {name: getattr(self, name) for name in ("accelerators", "reason", "hardware_reason")}
        return {"dtype": self.dtype, **peak, **own}


def work_of(trainer: Any) -> Work:
    """The work of a trainer whose model is ready to be trained; a fault is one warning. Process 0 looks up the peak."""
    try:
        formula, hardware_reason, own_loss = formula_of(trainer)
    except ModelError as error:
        return Work(None, str(error))
    except Exception as error:
        logger.warning("The FLOPs of the steps are not counted, because of a fault.", exc_info=True)
        return Work(None, f"a fault while the model was looked at: {type(error).__name__}: {error}")
    known = Work(formula, None, hardware_reason, own_loss=own_loss)
    if trainer.args.process_index != 0:
        return known
    try:
        dtype = matmul_dtype(trainer)
        known = dataclasses.replace(known, dtype=dtype, accelerators=accelerators_of(trainer))
        return dataclasses.replace(known, peak=peak_of(trainer.args.device, dtype))
    except ModelError as error:
        return dataclasses.replace(known, peak=Peak(reason=str(error)))
    except Exception as error:
        logger.warning("The device's peak is not known, because of a fault.", exc_info=True)
        reason = f"a fault while the device was looked at: {type(error).__name__}: {error}"
        return dataclasses.replace(known, peak=Peak(reason=reason))


def formula_of(trainer: Any) -> tuple[WorkFormula, str | None, str | None]:
    """The FLOPs of the trainer's steps, why those of the hardware are unknown, and the user's own method, if any (see
    ``objective_of``); ``ModelError``: the model's are not known either."""
    objective, own = objective_of(trainer)
    _check_parallelism(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)
    shape = shape_of_model(model)
    trained = trained_of(model, shape)
    if objective.head != "everywhere" and trained.head_rank:
        raise ModelError("TRL's fused head leaves out the adapter on lm_head; its FLOPs are not known.")
    needed = coefficients(shape, trained)
    reference = _reference(objective, model, shape)
    if reference is not None:
        needed += reference
    compiled = bool(trainer.args.torch_compile)
    try:
        kernel = _kernel(model, objective, trainer.args.device.type)
        way, layers = checkpointing_of(model)
    except ModelError as error:
        return WorkFormula(needed, None, "documents", objective.head, compiled), str(error), own
    again = objective.head_recomputed
    computed = coefficients(shape, trained, checkpointing=way, checkpointed_layers=layers, head_recomputed=again)
    if reference is not None:
        computed += reference
    return WorkFormula(needed, computed, kernel, objective.head, compiled), None, own


class ForwardCount:
    """Counts how often a loss of the user's own runs the model (no other) in a micro-batch; the FLOPs are of once."""

    def __init__(self, model: nn.Module, work: Work) -> None:
        self._work, self._ran = work, 0
        self._hook = model.register_forward_pre_hook(self._count)

    def corrected(self) -> Work | None:
        """After each micro-batch; the work without its FLOPs where it ran another number of times. Then it is over."""
        ran, self._ran = self._ran, 0
        if ran == 1:
            return None
        self.remove()
        times = "not at all as a whole" if not ran else f"{ran} times"
        reason = f"{self._work.own_loss}: it runs the model {times} for a micro-batch; FLOPs are counted for once"
        return dataclasses.replace(self._work, formula=None, reason=reason)

    def remove(self) -> None:
        self._hook.remove()

    def _count(self, *_: Any) -> None:
        self._ran += 1


def _kernel(model: nn.Module, objective: Objective, device_type: str) -> Kernel:
    kernel = kernel_of(model, device_type)
    if isinstance(objective.reference, nn.Module) and kernel_of(objective.reference, device_type) != kernel:
        raise ModelError("the reference model has another attention implementation than the one that is trained.")
    return kernel


def _reference(objective: Objective, model: nn.Module, shape: ModelShape) -> Coefficients | None:
    if objective.reference is None:
        return None
    if isinstance(objective.reference, nn.Module):
        return coefficients(shape_of_model(objective.reference), Trained(), forward_alone=True)
    adapter = adapter_of(model, shape, "ref") if objective.reference == "ref" else Trained()
    return coefficients(shape, adapter, forward_alone=True)


def _check_parallelism(trainer: Any) -> None:
    config = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if (getattr(config, name, 1) or 1) > 1:
            raise ModelError(f"parallelism_config.{name}: the FLOPs of a rank that computes a part are not known here.")
