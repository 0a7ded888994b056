"""What the loading of a step consisted of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Part", "helped_seconds", "load_parts"]


class Part(NamedTuple):
    """Of the loading of a step: seconds that wait and take no core, and seconds that compute."""

    blocked_seconds: float
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.blocked_seconds + self.cpu_seconds


def load_parts(mean: Mapping[str, float]) -> tuple[dict[str, Part], float]:
    """The loading of a step by what it did; and the time that it waited for a core, which is taken out of its waits.

    A thread that waits while others of its process compute (a tokenizer's, a decoder's) is not blocked.

    Args:
        mean: of a step, by the names of ``StepLoader``.

    Returns:
        Parts named ``storage``, ``transform`` and ``collation``, and seconds.
    """
    fetch, fetch_busy = _wall_and_busy(mean, "fetch")
    collate, collate_busy = _wall_and_busy(mean, "collate")
    waits = (fetch - fetch_busy) + (collate - collate_busy)
    core_wait = min(mean["core_wait_seconds"], waits)
    kept = 1 - core_wait / waits if waits > 0 else 1.0
    parts = {
        "storage": Part((fetch - fetch_busy) * kept, 0.0),
        "transform": Part(0.0, fetch_busy),
        "collation": Part((collate - collate_busy) * kept, collate_busy),
    }
    return parts, core_wait


def _wall_and_busy(mean: Mapping[str, float], name: str) -> tuple[float, float]:
    wall = mean[f"{name}_seconds"]
    return wall, min(wall, max(mean[f"{name}_cpu_seconds"], mean[f"{name}_process_cpu_seconds"]))


def helped_seconds(mean: Mapping[str, float]) -> float:
    """CPU time of other threads while the loading thread's own wall time went by: of a tokenizer, a decoder.

    Args:
        mean: of a step, by the names of ``StepLoader``.
    """
    return sum(max(0.0, mean[f"{name}_process_cpu_seconds"] - mean[f"{name}_seconds"]) for name in ("fetch", "collate"))
