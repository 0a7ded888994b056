from __future__ import annotations

import pytest

from hf_efficient.data.examples import check_weight, held_out, weighted
from hf_efficient.errors import DataError


def test_a_weight_is_how_often_an_epoch_sees_each_example():
    assert weighted([3, 5, 7], 1.0, 0) == [3, 5, 7]
    assert weighted([3, 5, 7], 2.0, 0) == [3, 5, 7, 3, 5, 7]
    half = weighted(range(10), 0.5, 0)
    assert len(half) == 5
    assert half == sorted(set(half))
    assert weighted(range(10), 1.7, 0)[:10] == list(range(10))
    assert len(weighted(range(10), 1.7, 0)) == 17
    more = weighted(range(10), 2.3, 0)
    assert more[:20] == [*range(10), *range(10)]
    assert len(more) == 23
    assert len(set(more[20:])) == 3


def test_a_small_weight_leaves_at_least_one():
    assert len(weighted(range(10), 0.01, 0)) == 1
    assert weighted([4], 0.1, 0) == [4]


def test_draws_follow_the_seed_alone():
    assert weighted(range(1000), 0.1, "0") == weighted(range(1000), 0.1, "0")
    assert weighted(range(1000), 0.1, "0:a") != weighted(range(1000), 0.1, "0:b")


@pytest.mark.parametrize(
    ("count", "fraction", "evaluated"),
    [(10, 0.2, 2), (10, 0.01, 1), (10, 0.999, 9), (2, 0.5, 1), (100, 0.05, 5)],
)
def test_held_out_splits_without_overlap(count, fraction, evaluated):
    train, evaluation = held_out(count, fraction, 0)
    assert len(evaluation) == evaluated
    assert sorted(train + evaluation) == list(range(count))
    assert (train, evaluation) == (sorted(train), sorted(evaluation))


def test_one_example_cannot_be_split():
    with pytest.raises(DataError) as caught:
        held_out(1, 0.1, 0)
    assert str(caught.value) == (
        "data.eval_fraction: 0.1 of 1 example cannot be held out: both sides need at least one. Name a data.eval "
        "source, or give more data."
    )


def test_copies_beyond_all_measure_are_refused():
    check_weight(100_000, 1000.0, "data.train.0")
    with pytest.raises(DataError) as caught:
        check_weight(100_001, 1000.0, "data.train.0")
    assert str(caught.value) == (
        "data.train.0.weight: 1000 times 100,001 examples are 100,001,000 per epoch, more than 100,000,000. Lower it; "
        "for more passes over all data raise train.num_train_epochs."
    )
