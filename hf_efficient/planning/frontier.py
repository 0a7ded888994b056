"""Which accelerators are beaten by another one in time and money, and which are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hf_efficient.records.plan import PlannedGpu

_Point = tuple[float, float]


def with_frontier(gpus: Sequence[PlannedGpu]) -> list[PlannedGpu]:
    """The same, marked where none that fits is at least as fast and as cheap, and better in one of the two.

    Hand-worked: (2 s, $1), (1 s, $3), (2 s, $3): the first two; the third is as slow as the first, and dearer.

    Those that do not fit, or whose time or cost is not known, are in nobody's way and never marked.
    """
    points = [_point(gpu) for gpu in gpus]
    known = [point for point in points if point is not None]
    return [
        dataclasses.replace(gpu, on_frontier=point is not None and not any(_beats(one, point) for one in known))
        for gpu, point in zip(gpus, points, strict=True)
    ]


def _point(gpu: PlannedGpu) -> _Point | None:
    """Time of a step and cost of its tokens, what spot machines lose included."""
    if not gpu.fits or gpu.step_seconds is None or gpu.usd_per_million_tokens is None:
        return None
    lost = gpu.spot.overhead_share if gpu.market == "spot" and gpu.spot is not None else None
    return gpu.step_seconds * (1 + (lost or 0.0)), gpu.usd_per_million_tokens


def _beats(one: _Point, other: _Point) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]
