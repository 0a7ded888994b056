"""The same examples as batches of several kinds: how much of each is padding, and how many steps an epoch takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hf_efficient.planning.packs import Lengths, packs
from hf_efficient.planning.shapes import Batching, batch_shapes
from hf_efficient.records.plan import PlannedBatching

_NOT_PACKED: dict[str, Any] = {"train.packing": False}


def batchings(
    documents: Lengths, how: Batching, *, packed: bool, max_length: int | None, seed: int
) -> list[PlannedBatching]:
    """In batches as they come, grouped by length, and packed, the recipe's own kind marked.

    Args:
        documents: tokens of each example, shape (examples,); at least one.
        how: the recipe's rows become batches.
        packed: whether the recipe packs.
        max_length: of a pack; None: they cannot be packed.
        seed: of the order of batches as they come.
    """
    kinds: list[tuple[str, dict[str, Any], Batching, Lengths]] = []
    apart = replace(how, padding_free=False)
    for by_length in (False, True):
        strategy = "group_by_length" if by_length else "random"
        overrides = {**_NOT_PACKED, "train.train_sampling_strategy": strategy}
        name = "grouped by length" if by_length else "as they come"
        kinds.append((name, overrides, replace(apart, by_length=by_length), documents))
    if max_length is not None:
        together = replace(how, padding_free=True, by_length=False)
        kinds.append(("packed", {"train.packing": True}, together, packs(documents, max_length)))
    chosen = "packed" if packed else "grouped by length" if how.by_length else "as they come"
    return [_told(name, overrides, one, rows, seed, name == chosen) for name, overrides, one, rows in kinds]


def _told(
    name: str, overrides: dict[str, Any], how: Batching, rows: Lengths, seed: int, chosen: bool
) -> PlannedBatching:
    shapes = batch_shapes(rows, replace(how, epochs=1.0, max_steps=-1), seed)
    return PlannedBatching(
        name=name,
        overrides=overrides,
        chosen=chosen,
        epoch_positions=round(shapes.step_tokens * shapes.epoch_steps),
        padding_share=shapes.padding_share,
        epoch_steps=shapes.epoch_steps,
    )
