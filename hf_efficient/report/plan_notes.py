"""Remarks of a plan, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records.plan import PlannedGpu
from hf_efficient.units import short_seconds, size

__all__ = ["grouped_notes", "spot_saves"]


def spot_saves(gpus: Sequence[PlannedGpu]) -> str:
    """How long a save on spot machines takes, and after how many steps it is cheapest; empty where not known."""
    found = [(gpu.name, gpu.spot) for gpu in gpus if gpu.fits and gpu.spot is not None]
    every = ", ".join(f"{spot.save_every_steps} on {name}" for name, spot in found if spot.save_every_steps)
    if not every:
        return ""
    _, spot = found[0]
    save = f"a save writes {size(spot.checkpoint_bytes)} in {short_seconds(spot.checkpoint_seconds)}"
    return f"spot: {save}; train.save_steps that costs least: {every}"


def grouped_notes(gpus: Sequence[PlannedGpu]) -> dict[str, list[str]]:
    """Each remark once, with the accelerators that it is about."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            found.setdefault(note, []).append(gpu.name)
    return found
