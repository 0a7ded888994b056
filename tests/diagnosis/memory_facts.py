"""The topic ``memory`` of a run, and what its allocator held."""

from __future__ import annotations

from typing import Any

__all__ = ["GIB", "memory", "step_memory"]

GIB = 1 << 30


def memory(positions: int | None = None, device: str = "cpu", **sizes: int) -> dict[str, Any]:
    """Bytes by category, of a micro-batch of so many positions."""
    categories = [{"name": name, "bytes": held, "how": "exact", "note": ""} for name, held in sizes.items()]
    return {"device": device, "categories": categories, "missing": [], "positions": positions}


def step_memory(allocated: int, reserved: int, retries: int = 0) -> dict[str, int]:
    """Of a step record."""
    return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved, "allocation_retries": retries}
