"""What ``DistributedDataParallel`` holds: a second copy of all gradients, in buckets (torch 2.13, ``reducer.cpp``)."""

from __future__ import annotations

from collections.abc import Iterable

from hf_efficient.planning.ranks.score import Score
from hf_efficient.planning.rehearsed import Rehearsal

_FIRST = 1 << 20
_OTHERS = 25 << 20
"""``kDefaultFirstBucketBytes``, and ``bucket_cap_mb``."""


def bucket_bytes(gradients: Iterable[int]) -> list[int]:
    """Gradients in the order in which they are made, put into buckets: each is closed once it holds its limit.

    Hand-worked, MiB: 0.5, 0.75, 20, 10, 3 are in buckets of 1.25, 30 and 3.

    Args:
        gradients: bytes of each.
    """
    found: list[int] = []
    held, limit = 0, _FIRST
    for size in gradients:
        held += size
        if held >= limit:
            found.append(held)
            held, limit = 0, _OTHERS
    return [*found, held] if held else found


def add_buckets(rehearsal: Rehearsal, score: Score) -> None:
    """They are there from the first step on; accelerate leaves ``gradient_as_bucket_view`` off."""
    trained = [weight for unit in rehearsal.units for weight in unit.weights if weight.trained]
    itemsize = trained[0].itemsize
    for size in bucket_bytes(weight.elements * weight.itemsize for weight in reversed(trained)):
        score.add(rehearsal.first_step, size, "communication", "DDP bucket", "setup", itemsize)
