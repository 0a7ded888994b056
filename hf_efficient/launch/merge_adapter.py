"""Whether the files of a saved adapter are whole, asked before its base is loaded."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from hf_efficient.errors import ModelError, first_line

__all__ = ["ADAPTER_CONFIG", "check_adapter_weights", "read_adapter_config"]

ADAPTER_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_REMEDY = "It was damaged, or copied in part: copy the folder again, or write one of the run's checkpoints."


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """PEFT's configuration of the adapter in ``folder``, as plain data.

    Raises:
        ModelError: it cannot be read, or is not one that the installed PEFT knows.
    """
    path = folder / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {first_line(error)}. {_REMEDY}") from error
    if not isinstance(config, dict) or "peft_type" not in config:
        raise ModelError(f"{path} is no configuration of an adapter: it has no peft_type. {_REMEDY}")
    from peft import PeftConfig

    try:
        PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path} is no configuration that PEFT {importlib.metadata.version('peft')} knows: {first_line(error)}. "
            "Install the version that the adapter was trained with."
        ) from error
    return config


def check_adapter_weights(folder: Path) -> None:
    """Refuse weights that are missing or not whole.

    Raises:
        ModelError: neither file of weights is there, or the safetensors file is cut off or is none.
    """
    if not any((folder / name).is_file() for name in _WEIGHTS):
        raise ModelError(f"{folder} holds {ADAPTER_CONFIG} but no {_WEIGHTS[0]}. {_REMEDY}")
    path = folder / _WEIGHTS[0]
    if not path.is_file():
        return
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np"):
            pass
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read: {first_line(error)}. {_REMEDY}") from error
