"""What becomes of whole gradients under ZeRO-2 and 3 (DeepSpeed 0.19.8).

A gradient is copied into the bucket as soon as it is made, and a rank keeps its share. One that is larger than a bucket
waits whole, outside of it, for the next gradient (``extra_large_param_to_reduce`` in ``stage_1_and_2.py``,
``__add_grad_to_ipg_bucket`` in ``stage3.py``). Left out: the copy of such a one whose parts go to several ranks.
"""

from __future__ import annotations

from hf_efficient.planning.ranks.held import gradient_indices
from hf_efficient.planning.ranks.score import Score
from hf_efficient.planning.ranks.sizes import Sizes
from hf_efficient.planning.rehearsed import Rehearsal

_BACKWARD = ("backward", "recompute")


def spread_gradients(rehearsal: Rehearsal, score: Score, sizes: Sizes) -> None:
    """Under ZeRO-2 and 3 whole gradients last for a moment, and the rank's share takes their place."""
    if sizes.sharding.whole_gradients:
        return
    weights = {weight.name: weight for unit in rehearsal.units for weight in unit.weights}
    steps: dict[int, list[tuple[int, int | None]]] = {}
    made: dict[int, list[tuple[int, int, int]]] = {}
    for name, places in gradient_indices(rehearsal).items():
        for step, index in enumerate(places):
            life = rehearsal.log.lives[index]
            made.setdefault(step, []).append((life.born_at, index, weights[name].elements if name in weights else 0))
            if name in weights:
                steps.setdefault(step, []).append((life.born_at, life.freed_at))
    for of_a_step in made.values():
        _cut_whole(rehearsal, score, sorted(of_a_step), sizes.sharding.bucket_elements)
    trained = [weight for weight in weights.values() if weight.trained]
    share, itemsize = sum(map(sizes.gradient_shard, trained)), trained[0].itemsize
    if sizes.sharding.offload_optimizer:
        return
    if sizes.strategy == "zero3":
        score.add(rehearsal.first_step, share, "gradients", "share of all", "setup", itemsize)
        return
    for lives in steps.values():
        held = score.add(min(born for born, _ in lives), share, "gradients", "share of all", "backward", itemsize)
        ends = [freed for _, freed in lives if freed is not None]
        if ends:
            score.end(held, max(ends) - 1)


def _cut_whole(rehearsal: Rehearsal, score: Score, made: list[tuple[int, int, int]], bucket_elements: int) -> None:
    """End whole gradients: into the bucket at once, or, where that is too small, when the next one is there."""
    lives, events = rehearsal.log.lives, rehearsal.log.events
    for place, (born, index, elements) in enumerate(made):
        end = born + 1
        if elements > bucket_elements and place + 1 < len(made):
            end = made[place + 1][0] + 1
        elif elements > bucket_elements:  # the last one of a backward, which its end sends
            later = range(born + 1, len(events))
            over = (at for at in later if events[at][1] > 0 and lives[events[at][0]].phase not in _BACKWARD)
            end = next(over, len(events))
        score.cut(index, end)
