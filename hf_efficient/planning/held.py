"""Bytes of each kind of tensor in a rehearsal, when there is most of it: what a run can count by itself."""

from __future__ import annotations

from itertools import accumulate

from hf_efficient.estimate.parallelism import ZERO
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.simulate.peak import category_of


def held_by_category(rehearsal: Rehearsal) -> dict[str, int]:
    """Weights and adapter at most; gradients when the optimizer steps, and its state after that; activations where a
    backward begins. Of DeepSpeed, which steps inside the backward, gradients at most while they are made.

    Logits likewise, with the model's output, which is gone by then. The peak of the whole lies where the sum is
    largest, at which none of them need be. Of several ranks whole gradients may be on the way before the step: FSDP2
    keeps them from one micro-batch to the next, and shares them out in the last one.
    """
    log = rehearsal.log
    marked: dict[str, list[int]] = {}
    for index, size in log.events:
        category = log.lives[index].category
        if category and (category, log.lives[index].phase) != ("gradients", "optimizer"):  # ZeRO's casts of its share
            marked.setdefault(category, []).append(size)
    found = {category: max(accumulate(sizes)) for category, sizes in marked.items()}
    steps = [] if rehearsal.rank is not None and rehearsal.rank.sharding.strategy in ZERO else _steps(rehearsal)
    if steps and "gradients" in found:
        found["gradients"] = max(_bytes(rehearsal, "gradients", {step}) for step in steps)
    if "optimizer_state" in found:
        found["optimizer_state"] = _bytes(rehearsal, "optimizer_state", {rehearsal.second_step})
    found["activations"] = found["logits"] = 0
    ends = rehearsal.forward_ends or rehearsal.backward_starts
    for end, start in zip(ends, rehearsal.backward_starts, strict=True):
        found["activations"] = max(found["activations"], _bytes(rehearsal, "activations", {start}))
        found["logits"] = max(found["logits"], _bytes(rehearsal, "logits", {end, start}))
    return found


def _steps(rehearsal: Rehearsal) -> list[int]:
    """Events before the first allocation of each optimizer step; none of one that allocates nothing."""
    lives = rehearsal.log.lives
    born = [life.born_at for life in lives if life.phase == "optimizer"]
    halves = ([one for one in born if (one < rehearsal.second_step) == first] for first in (True, False))
    return [min(half) for half in halves if half]


def _bytes(rehearsal: Rehearsal, category: str, events: set[int]) -> int:
    """Of the storages of a kind that are there at one of these events."""
    return sum(
        life.bytes
        for life in rehearsal.log.lives
        if any(life.lives_at(event) for event in events)
        and category_of(life, rehearsal.backward_starts, rehearsal.vocabulary) == category
    )
