"""The same examples as batches of several kinds."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.planning.batches import Batching, batchings, packs


def told(found):
    return [(one.name, one.epoch_positions, round(one.padding_share, 4), one.epoch_steps, one.chosen) for one in found]


def test_by_hand():
    """Eight of 6 and eight of 2, in pairs: 8 steps, sorted in stretches of four. Packs of 8: eight, in four steps."""
    documents = np.array([6] * 8 + [2] * 8)
    found = batchings(documents, Batching(2), packed=False, max_length=8, seed=0)
    assert told(found)[2] == ("packed", 64, 0.0, 4, False)
    assert [one.epoch_steps for one in found] == [8, 8, 4]
    assert [one.chosen for one in found] == [True, False, False]
    for one, most_mixed in zip(found[:2], (8, 4), strict=True):  # of each stretch one pair at most
        assert one.epoch_positions in range(64, 64 + 4 * most_mixed + 1, 4)
        assert one.padding_share == pytest.approx(1 - 64 / one.epoch_positions)


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
