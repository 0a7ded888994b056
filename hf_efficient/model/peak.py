"""The dtype that a trainer's matrix products run in, and the peak FLOP/s of what it computes on."""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hf_efficient.errors import ModelError
from hf_efficient.facts.accelerators import Dtype, accelerator_of_device
from hf_efficient.model.structure import whole_shape
from hf_efficient.profilers.calibration import cpu_matmul_peak

_NAMES: dict[torch.dtype, Dtype] = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def matmul_dtype(trainer: Any) -> Dtype:
    """The dtype of the layers' products: most of the FLOPs. Of 4-bit layers the compute dtype, else autocast's or the
    weights'; float32 on a CUDA device may run in TF32. Raises ``ModelError``: there is no one dtype, or it is not
    known."""
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
