"""How a run was set up, stated once for its diagnosis: arguments, model, optimizer, device and host."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from torch import nn
from transformers import TrainingArguments

from hf_efficient.hardware.devices import cpu_multiplies_bf16
from hf_efficient.measure.matmul_peak import cpu_matmul_peak
from hf_efficient.measure.timeline import Timeline
from hf_efficient.models.structure import base_model
from hf_efficient.models.whole import whole_shape

__all__ = ["note_settings"]

logger = logging.getLogger(__name__)

_LONGEST = 500
_SECRET = ("token", "key", "password")


def note_settings(
    timeline: Timeline,
    args: TrainingArguments,
    model: nn.Module | None,
    optimizer: Any = None,
    *,
    matmul_dtype: str | None = None,
) -> None:
    """State the topic ``settings``; a fault is logged, and the diagnosis goes without.

        arguments   the fields of TrainingArguments that are plain values
        model       attention, weights_dtype, matmul_dtype, activation_checkpointing, parameters,
                    trainable_parameters, vocabulary_size, compiled
        optimizer   class, fused
        device      type, index, name, memory_bytes, supports_bf16, count
        host        cores (that this process may use), torch_threads
        peaks       FLOP/s of matrix products on this CPU by dtype, where bfloat16 could be float32, or the reverse

    Args:
        timeline: is told.
        args: of the Trainer.
        model: as it is trained; None: not known.
        optimizer: the same.
        matmul_dtype: of the model's products; None: not known.
    """
    try:
        timeline.state(
            "settings",
            {
                "arguments": _arguments(args),
                "model": {} if model is None else _model(model, args, matmul_dtype),
                "optimizer": _optimizer(optimizer),
                "device": _device(args.device, max(1, args.n_gpu)),
                "host": {"cores": _cores(), "torch_threads": torch.get_num_threads()},
                "peaks": _peaks(args.device, matmul_dtype),
            },
        )
    except Exception:
        logger.warning("How this run was set up is not recorded, because of a fault.", exc_info=True)


def _arguments(args: TrainingArguments) -> dict[str, Any]:
    held = args.to_dict()
    return {name: value for name, value in held.items() if _is_plain(value) and not name.endswith(_SECRET)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return len(value) <= 20 and all(_is_plain(one) for one in inner)
    return isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) <= _LONGEST)


def _model(model: nn.Module, args: TrainingArguments, matmul_dtype: str | None) -> dict[str, Any]:
    base = base_model(model)
    config = base.config.get_text_config()
    parameters = list(model.parameters())
    floating = [one for one in parameters if one.is_floating_point() and len(whole_shape(one)) > 1]
    largest = max(floating, key=lambda one: whole_shape(one).numel(), default=None)
    return {
        "attention": getattr(config, "_attn_implementation", None),
        "weights_dtype": None if largest is None else str(largest.dtype).removeprefix("torch."),
        "matmul_dtype": matmul_dtype,
        "activation_checkpointing": any(getattr(one, "gradient_checkpointing", False) for one in base.modules()),
        "parameters": sum(whole_shape(one).numel() for one in parameters),
        "trainable_parameters": sum(whole_shape(one).numel() for one in parameters if one.requires_grad),
        "vocabulary_size": getattr(config, "vocab_size", None),
        "compiled": bool(args.torch_compile),
    }


def _optimizer(optimizer: Any) -> dict[str, Any]:
    inner = getattr(optimizer, "optimizer", optimizer)
    if inner is None:
        return {}
    return {"class": type(inner).__name__, "fused": bool(getattr(inner, "defaults", {}).get("fused"))}


def _device(device: torch.device, count: int) -> Mapping[str, Any]:
    if device.type == "cuda":
        held = torch.cuda.get_device_properties(device)
        index = torch.cuda.current_device() if device.index is None else device.index
        known = {"index": index, "name": held.name, "memory_bytes": held.total_memory}
        return {"type": "cuda", "count": count, **known, "supports_bf16": torch.cuda.is_bf16_supported()}
    if device.type == "cpu":
        memory = psutil.virtual_memory().total
        return {"type": "cpu", "count": 1, "memory_bytes": memory, "supports_bf16": cpu_multiplies_bf16()}
    return {"type": device.type, "count": count}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _peaks(device: torch.device, dtype: str | None) -> dict[str, float]:
    faster_elsewhere = "fp32" if cpu_multiplies_bf16() else "bf16"
    if device.type != "cpu" or dtype != faster_elsewhere:
        return {}
    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return {name: cpu_matmul_peak(kind).flops_per_second for name, kind in kinds.items()}
