"""Remarks of a plan, in words."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.units import short_seconds, size

__all__ = ["grouped_notes", "spot_saves"]


def spot_saves(gpus: Sequence[PlannedGpu], steps: int | None = None) -> str:
    """How long a save on spot machines takes, and after how many steps it is cheapest; empty where not known.

    Args:
        gpus: of the plan.
        steps: of the run; None where not known.
    """
    found = [(gpu.name, gpu.spot, gpu.spot.save_every_steps) for gpu in gpus if gpu.fits and gpu.spot is not None]
    known = [(name, every) for name, _, every in found if every is not None]
    if not known:
        return ""
    spot = found[0][1]
    told = [f"spot: a save writes {size(spot.checkpoint_bytes)} in {short_seconds(spot.checkpoint_seconds)}"]
    within = [f"{every:,} on {name}" for name, every in known if steps is None or every < steps]
    beyond = [name for name, every in known if steps is not None and every >= steps]
    if within:
        told.append(f"train.save_steps that costs least: {', '.join(within)}")
    if beyond:
        told.append(f"no save before the end of the run costs least on {', '.join(beyond)}")
    return "; ".join(told)


def grouped_notes(gpus: Sequence[PlannedGpu]) -> dict[str, list[str]]:
    """Each remark once, with the accelerators that it is about."""
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for note in gpu.notes:
            found.setdefault(note, []).append(gpu.name)
    return found
