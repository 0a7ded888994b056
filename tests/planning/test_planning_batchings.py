"""The same examples as batches of several kinds."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.planning.batchings import batchings
from hf_efficient.planning.packs import packs
from hf_efficient.planning.shapes import Batching


def told(found):
    return [(one.name, one.epoch_positions, round(one.padding_share, 4), one.epoch_steps, one.chosen) for one in found]


def test_by_hand():
    """Four of 6 and four of 2, in pairs, by length: 4 steps of 12, 12, 4, 4. Packs of 8: four, in two steps of two."""
    documents = np.array([6, 6, 6, 6, 2, 2, 2, 2])
    found = batchings(documents, Batching(2), packed=False, max_length=8, seed=0)
    assert told(found)[1:] == [("grouped by length", 32, 0.0, 4, False), ("packed", 32, 0.0, 2, False)]
    assert found[0].chosen
    assert found[0].epoch_steps == 4
    assert found[0].epoch_positions in (32, 40, 48)  # 0, 2 or 4 of the pairs are mixed
    assert found[0].padding_share == pytest.approx(1 - 32 / found[0].epoch_positions)


def test_the_recipes_own_kind_is_marked():
    documents = np.array([6, 2, 6, 2])
    grouped = batchings(documents, Batching(2, by_length=True), packed=False, max_length=8, seed=0)
    assert [one.chosen for one in grouped] == [False, True, False]
    packed = batchings(documents, Batching(2, padding_free=True), packed=True, max_length=8, seed=0)
    assert [one.chosen for one in packed] == [False, False, True]
    assert packed[1].overrides == {"train.packing": False, "train.train_sampling_strategy": "group_by_length"}


def test_the_whole_run_does_not_matter():
    """Of a run of one step an epoch is told."""
    (_, grouped) = batchings(
        np.array([4] * 12), Batching(2, micro_batches=2, max_steps=1), packed=False, max_length=None, seed=0
    )
    assert (grouped.epoch_positions, grouped.epoch_steps) == (48, 3)


def test_packs_are_trls_best_fit():
    assert sorted(packs(np.array([5, 3, 4, 4, 2]), 8).tolist()) == [2, 8, 8]
