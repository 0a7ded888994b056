"""The data type of a model's weights as a run loads them, found without loading them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hf_efficient.errors import HfEfficientError
from hf_efficient.model.source import resolve_model_source
from hf_efficient.recipe.schema import ModelSection

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_FLOATS = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def weights_dtype(model: ModelSection, config: PretrainedConfig) -> torch.dtype:
    """``model.dtype``; for ``auto`` the configuration's, else that of the first weight of a local checkpoint.

    Without any of them float32, as transformers takes it.

    Args:
        model: the recipe's section.
        config: of the model.
    """
    if model.dtype != "auto":
        return getattr(torch, model.dtype)
    stated = config.dtype
    if isinstance(stated, torch.dtype):
        return stated
    return _of_checkpoint(model) or torch.float32


def _of_checkpoint(model: ModelSection) -> torch.dtype | None:
    from safetensors import SafetensorError, safe_open

    try:
        source = resolve_model_source(model)
    except HfEfficientError:
        return None  # said in full by whoever needs the model
    if not source.is_local:
        return None
    for path in sorted(Path(source.location).glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as weights:
                kinds = [weights.get_slice(name).get_dtype() for name in weights.keys()]  # noqa: SIM118  no mapping
        except (OSError, SafetensorError):
            continue
        found = next((_FLOATS[kind] for kind in kinds if kind in _FLOATS), None)
        if found is not None:
            return found
    return None
