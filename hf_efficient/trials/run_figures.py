"""The figures of one training of an arm. It imports torch alone, which every peer's environment has."""

import resource
import sys
from pathlib import Path
from typing import Any

import torch


def token_counts(inputs: Any, pad_token_id: int | None = None) -> tuple[Any, int]:
    """Tokens without padding, on their device, and all. A mask of two dimensions says which are no padding, else the
    padding token does; without a mask none is."""
    ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    if mask is None:
        return ids.numel(), ids.numel()
    return (mask != 0).sum() if mask.dim() == 2 else (ids != pad_token_id).sum(), ids.numel()


def run_figures(
    seconds: list[float], counts: list[list[tuple[Any, int]]], losses: list[float], gradient_norms: list[float]
) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "non_padding": [sum(int(real) for real, _ in step) for step in counts],
        "processed": [sum(every for _, every in step) for step in counts],
        "losses": losses,
        "gradient_norms": gradient_norms,
        "peak_host_bytes": _peak_host_bytes(),
        "peak_device_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
    }


def _peak_host_bytes() -> int:
    """The kernel's own figure where there is one: ``getrusage`` may give the parent's on Linux."""
    status = Path("/proc/self/status")
    if status.is_file():
        found = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        if found:
            return int(found[0].split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
