"""How many accelerators this machine has."""

from __future__ import annotations

__all__ = ["accelerator_count"]


def accelerator_count() -> int:
    """Accelerators that torch sees here; 0 on a CPU."""
    import torch

    return int(torch.accelerator.device_count()) if torch.accelerator.is_available() else 0
