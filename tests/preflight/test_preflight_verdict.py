"""Notes to what was proven: figures by hand."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.preflight.launches import RankNotes, differing, disk_failure, figures_of

SAVED = {
    "saves": 12, "save_total_limit": 2, "keeps_best": False, "checkpoints_there": 0, "free_bytes": 1000,
    "checkpoint_bytes": 100, "model_bytes": 40, "merged_bytes": 0, "micro_batches": 2, "recipe_micro_batches": 8,
    "training_peak_bytes": 7, "save_seconds": 1.0, "fingerprint": "f",
}  # fmt: skip


def saved(rank: int = 0, **changes) -> RankNotes:
    notes = RankNotes(rank, 2, weights={"a": "1", "b": "2"}, optimizer={"a m": "3"}, losses=[9.0, 9.0, 0.5, 0.25])
    return dataclasses.replace(notes, **changes)


def loaded(rank: int = 0, **changes) -> RankNotes:
    notes = RankNotes(rank, 2, weights={"a": "1", "b": "2"}, optimizer={"a m": "3"}, losses=[0.5, 0.25])
    return dataclasses.replace(notes, **changes)


def test_figures():
    ranks = [saved(figures=SAVED), saved(1, losses=[9, 9, 1, 0.25], figures={"training_peak_bytes": 9})]
    told = figures_of(ranks, [loaded(figures={"load_seconds": 2.0}), loaded(1, losses=[1, 0.25])])
    assert told["training_peak_bytes"] == 9  # the largest of the ranks
    assert told["checkpoints_to_come"] == 3  # 2 kept, and the new one beside them
    assert told["needed_bytes"] == 3 * 100 + 40
    assert told["next_loss"] == told["next_loss_after_load"] == (0.75 + 1.25) / 2
    assert told["compared_tensors"] == 2 * 3
    assert (told["world_size"], told["load_seconds"], told["save_seconds"]) == (2, 2.0, 1.0)
    assert "saves" not in told


def test_a_disk_that_is_just_large_enough_and_one_that_is_not():
    assert disk_failure(figures_of([saved(figures={**SAVED, "free_bytes": 340})])) is None
    failure = disk_failure(figures_of([saved(figures={**SAVED, "free_bytes": 339})]))
    assert failure is not None
    assert failure.kind == "disk"
    assert "3 checkpoints of 100 B and the model in the end need 340 B, and 339 B are free" in failure.message
    assert "train.save_total_limit=1" in failure.message


def test_equal_notes_are_equal():
    assert differing([saved(), saved(1)], [loaded(), loaded(1)]) is None
    assert differing([saved()], [loaded(losses=[0.5, 0.2501])]) is None  # the order of a sum on a GPU
    nan = float("nan")
    assert differing([saved(losses=[nan] * 4)], [loaded(losses=[nan] * 2)]) is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weights": {"a": "1", "b": "9"}}, "1 of 2 tensors of the weights are not what was saved (rank 1: b)"),
        ({"weights": {"a": "1"}}, "(rank 1: b)"),
        ({"weights": {"a": "1", "b": "2", "c": "0"}}, "c (not saved)"),
        ({"optimizer": {}}, "1 of 1 tensors of the optimizer's state"),
        ({"losses": [0.5, 0.26]}, "the loss of the next step is 0.26 in place of 0.25 (rank 1)"),
        ({"losses": [0.5, float("nan")]}, "is nan in place of 0.25"),
        ({"rank": 2}, "rank 1 was not there"),
    ],
)
def test_what_differs_is_named(change, told):
    failure = differing([saved(), saved(1)], [loaded(), dataclasses.replace(loaded(1), **change)])
    assert failure is not None
    assert (failure.kind, failure.rank) == ("differs", 1)
    assert told in failure.message
