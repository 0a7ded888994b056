"""The FLOPs of a trainer's steps, and the peak that they are held against: looked at once, when training begins."""

import dataclasses
import functools
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.estimate.flops import Checkpointing, Coefficients, Head, Kernel, WorkFormula, coefficients
from hf_efficient.estimate.model_shape import ModelShape, Trained, layer_of
from hf_efficient.facts.tables import Dtype, accelerator_of_device
from hf_efficient.model.structure import adapter_of, base_model, shape_of_model, trained_of, whole_shape
from hf_efficient.profilers.calibration import cpu_matmul_peak
from hf_efficient.recording.holders import is_wrapped
from hf_efficient.text import counted


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
    if hasattr(trainer, "teacher_predictions"):
        return Objective("scored", reference=trainer.teacher_model), own
    if getattr(trainer, "chunked_loss", False):
        head = trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False).get_output_embeddings()
        is_trained = any(parameter.requires_grad for parameter in head.parameters())
        return Objective("scored", head_recomputed=is_trained or has_fused_kernels(trainer.args.device)), own
    return Objective(), own


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
            code = getattr(inspect.unwrap(vars(kind)[method]), "__code__", None)
            calls_below = calls_below and code is not None and "super" in code.co_names
    return own, calls_below


def _preference(trainer: Any) -> Objective:
    reference: Any = None
    if not trainer.precompute_ref_logps and trainer.ref_model is not None:
        reference = trainer.accelerator.unwrap_model(trainer.ref_model)
    elif not trainer.precompute_ref_logps:
        reference = "ref" if "ref" in getattr(trainer.model, "peft_config", {}) else "base"
    return Objective(_fused_head(trainer), head_recomputed=True, reference=reference)


def _fused_head(trainer: Any) -> Head:
    return "scored" if has_fused_kernels(trainer.args.device) else "shifted"


def has_fused_kernels(device: torch.device) -> bool:
    """Whether TRL's fused head runs on Triton there, for scored positions alone; else for all but each row's last."""
    from transformers.utils import is_triton_available

    return device.type in ("cuda", "xpu") and is_triton_available()


_NAMES: dict[torch.dtype, Dtype] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def matmul_dtype(trainer: Any) -> Dtype:
    """The dtype of the layers' products: most of the FLOPs. Of 4-bit layers the compute dtype, else autocast's or the
    weights'; float32 on a CUDA device may run in TF32. Raises ``ModelError``: there is no one known dtype."""
    quantized = _compute_dtypes(trainer.model)
    mixed = str(trainer.accelerator.mixed_precision)
    if mixed not in ("no", "bf16", "fp16"):
        raise ModelError(f"mixed precision {mixed!r}: which products run in it is not known here")
    if quantized:
        found = quantized
    elif mixed != "no":
        found = {torch.bfloat16 if mixed == "bf16" else torch.float16}
    else:
        found = {_weights_dtype(trainer.model)}
    if len(found) > 1 or not found <= set(_NAMES):
        raise ModelError(f"the matrix products run in {', '.join(sorted(map(str, found)))}, not in one known dtype")
    name = _NAMES[found.pop()]
    return "tf32" if name == "fp32" and trainer.args.device.type == "cuda" and _tf32_allowed() else name


def _compute_dtypes(model: nn.Module) -> set[torch.dtype]:
    """What the 4-bit layers multiply in; empty without any."""
    method = getattr(getattr(model.config, "quantization_config", None), "quant_method", None)
    if method is None:
        return set()
    bitsandbytes = sys.modules.get("bitsandbytes")
    if bitsandbytes is None or "bitsandbytes" not in str(getattr(method, "value", method)):
        raise ModelError(f"weights quantized by {getattr(method, 'value', method)}: what they multiply in is not known")
    layers = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    if not layers:
        raise ModelError("8-bit layers multiply in int8 forwards and in 16 bits backwards: there is no one peak")
    # A layer that was given none takes that of its first input.
    return {layer.compute_dtype or _weights_dtype(model) for layer in layers}


def _weights_dtype(model: nn.Module) -> torch.dtype:
    """Of most of the weights that multiply, by their number: adapters included, 4-bit weights left out."""
    values: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        packed = type(parameter).__name__ == "Params4bit"
        if len(whole_shape(parameter)) > 1 and parameter.is_floating_point() and not packed:
            values[parameter.dtype] += whole_shape(parameter).numel()
    return values.most_common(1)[0][0]


def _tf32_allowed() -> bool:
    matmul: Any = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)  # torch 2.9 and later; reflects the older switches as well
    if precision is None:
        return bool(matmul.allow_tf32)
    if precision == "none":
        precision = getattr(torch.backends, "fp32_precision", "none")
    return bool(precision == "tf32")


@dataclass(frozen=True)
class Peak:
    """Dense FLOP/s of one accelerator; estimated where measured here; None, with a reason, where unknown."""

    flops_per_second: float | None = None
    source: str | None = None
    estimated: bool = False
    reason: str | None = None


def peak_of(device: torch.device, dtype: Dtype) -> Peak:
    """The vendor's figure for a CUDA device; for a CPU the rate of matrix products, which takes a second to measure."""
    if device.type == "cpu":
        found = cpu_matmul_peak(next(one for one, name in _NAMES.items() if name == dtype))
        threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
        where = "here on a busy machine" if found.is_of_a_busy_machine else "here"
        source = f"a matmul measured {where}: {found.size} x {found.size}, {threads}, {found.measured_on}"
        return Peak(found.flops_per_second, source, estimated=True)
    if device.type != "cuda":
        return Peak(reason=f"no peak is known of a device of type {device.type!r}")
    name = torch.cuda.get_device_name(device)
    known = accelerator_of_device(name)
    if known is None:
        return Peak(reason=f"the peak of {name!r} is not known here")
    flops = known.peak(dtype)
    if flops is None:
        return Peak(reason=f"the peak of {known.name} in {dtype} is not stated")
    return Peak(flops, f"{known.name}, dense, stated by {known.vendor}: {known.source} ({known.date})")


def accelerators_of(trainer: Any) -> int:
    """How many this process computes on: one, unless the model is split over them or copied to each."""
    placed = getattr(trainer.model, "hf_device_map", None) or {}
    split = {str(where) for where in placed.values()} - {"cpu", "disk"}
    return max(1, len(split), int(trainer.args.n_gpu))


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
    known = Work(None)
    try:
        formula, hardware_reason, own_loss = formula_of(trainer)
        known = Work(formula, None, hardware_reason, own_loss=own_loss)
        if trainer.args.process_index != 0:
            return known
        dtype = matmul_dtype(trainer)
        known = dataclasses.replace(known, dtype=dtype, accelerators=accelerators_of(trainer))
        return dataclasses.replace(known, peak=peak_of(trainer.args.device, dtype))
    except ModelError as error:
        reason = str(error)
    except Exception as error:
        lost = "FLOPs of the steps are not counted" if known.formula is None else "device's peak is not known"
        logger.warning("The %s, because of a fault.", lost, exc_info=True)
        seen = "model" if known.formula is None else "device"
        reason = f"a fault while the {seen} was looked at: {type(error).__name__}: {error}"
    return Work(None, reason) if known.formula is None else dataclasses.replace(known, peak=Peak(reason=reason))


def formula_of(trainer: Any) -> tuple[WorkFormula, str | None, str | None]:
    """The FLOPs of the steps, why the hardware's are unknown, and the user's own method; ``ModelError``: neither."""
    objective, own = objective_of(trainer)
    parallelism = getattr(trainer.accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        if (getattr(parallelism, name, 1) or 1) > 1:
            raise ModelError(f"parallelism_config.{name}: the FLOPs of a rank that computes a part are not known here.")
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
        kernel = kernel_of(model, trainer.args.device.type)
        other = objective.reference
        if isinstance(other, nn.Module) and kernel_of(other, trainer.args.device.type) != kernel:
            raise ModelError("the reference model has another attention implementation than the one that is trained.")
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

    def begin(self) -> None:
        """What an evaluation or a callback ran until here is of no micro-batch."""
        self._ran = 0

    def corrected(self) -> Work | None:
        """After each micro-batch; the work without its FLOPs where it ran another number of times. Then it is over."""
        ran, self._ran = self._ran, 0
        if ran == 1:
            return None
        self.remove()
        times = "not at all as a whole" if not ran else counted(ran, "time")
        reason = f"{self._work.own_loss}: it runs the model {times} for a micro-batch; FLOPs are counted for once"
        return dataclasses.replace(self._work, formula=None, reason=reason)

    def remove(self) -> None:
        self._hook.remove()

    def _count(self, *_: Any) -> None:
        self._ran += 1


def _reference(objective: Objective, model: nn.Module, shape: ModelShape) -> Coefficients | None:
    if objective.reference is None:
        return None
    if isinstance(objective.reference, nn.Module):
        return coefficients(shape_of_model(objective.reference), Trained(), forward_alone=True)
    adapter = adapter_of(model, shape, "ref") if objective.reference == "ref" else Trained()
    return coefficients(shape, adapter, forward_alone=True)
