"""Whether what was saved holds what was trained: engines can write a checkpoint whose tensors are empty."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import safe_open

__all__ = ["folder_bytes", "saved_fault"]


def saved_fault(folder: Path, trained_elements: int) -> str | None:
    """What is wrong with the weights in a folder that a run would leave in the end; None where nothing is.

    Args:
        folder: in which they lie.
        trained_elements: how many numbers are trained.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickled = [*folder.glob("pytorch_model*.bin"), *folder.glob("adapter_model.bin")]
        return None if pickled else "no weights were written"
    elements = 0
    for path in files:
        with safe_open(path, framework="np") as held:
            for name in held.keys():  # noqa: SIM118  it is no mapping
                found = math.prod(held.get_slice(name).get_shape())
                if not found:
                    return f"{path.name} holds {name} without a single number"
                elements += found
    if elements < trained_elements:
        return f"of {trained_elements:,} trained numbers only {elements:,} were written"
    return None


def folder_bytes(folder: Path, *, deep: bool = True) -> int:
    """Of all files in it.

    Args:
        folder: that is there.
        deep: with those in folders of it.
    """
    found = folder.rglob("*") if deep else folder.glob("*")
    return sum(path.stat().st_size for path in found if path.is_file())
