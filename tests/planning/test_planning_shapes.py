"""The batches that a run will see, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.planning.batches import Batching, BatchShapes, batch_shapes


def test_the_worked_example():
    lengths = [8, 2, 4, 2]
    assert batch_shapes(lengths, Batching(2, shuffled=False)) == BatchShapes(8, 12.0, 2, 2, 8.0, padded=True)
    assert batch_shapes(lengths, Batching(2, padding_free=True)) == BatchShapes(6, 8.0, 2, 2, 8.0, padded=False)
    assert batch_shapes([4, 4, 4, 4], Batching(2)) == BatchShapes(4, 8.0, 2, 2, 8.0, padded=False)


def test_rows_of_like_length_go_together_in_stretches():
    """64 rows in pairs: stretches of 16 are sorted, so that of each one pair may be of 8 and 2; by chance half are."""
    lengths = [8] * 32 + [2] * 32
    grouped = batch_shapes(lengths, Batching(2, by_length=True))
    assert 320 <= 32 * grouped.step_tokens <= 320 + 4 * 6
    assert 32 * batch_shapes(lengths, Batching(2)).step_tokens > 320 + 8 * 6
    assert 32 * grouped.step_content == 320


def test_rows_in_their_own_order():
    """8 and 2, 4 and 2: 16 and 8 positions for 10 and 6 tokens."""
    found = batch_shapes([8, 2, 4, 2], Batching(2, shuffled=False))
    assert (found.step_tokens, found.step_content) == (12.0, 8.0)
    assert found.padding_share == pytest.approx(1 / 3)


def test_single_rows_have_no_padding_but_for_multiples():
    assert batch_shapes([8, 2, 4, 2], Batching(1)) == BatchShapes(8, 4.0, 4, 4, 4.0, padded=False)
    assert batch_shapes([9, 2], Batching(1, multiple_of=8)) == BatchShapes(16, 12.0, 2, 2, 5.5, padded=False)


@pytest.mark.parametrize(
    ("how", "steps", "step_tokens"),
    [
        (Batching(2, micro_batches=2), 3, 20 * 2 * 5 / 3),  # ten rows: five micro-batches in three steps
        (Batching(2, micro_batches=2, max_steps=2), 2, 80.0),  # the last step of the epoch does not come
        (Batching(2, micro_batches=2, epochs=1.5), 5, 20 * 2 * 5 / 3),
        (Batching(4, drop_last=True), 2, 200 / 3),
        (Batching(2, processes=2), 3, 20 * 2 * 2.0),
    ],
)
def test_the_steps_of_ten_rows_of_twenty(how, steps, step_tokens):
    found = batch_shapes([20] * 10, how)
    assert (found.steps, found.row_tokens) == (steps, 20)
    assert found.step_tokens == found.step_content == pytest.approx(step_tokens)


def test_the_mean_of_a_random_order():
    """Pairs of 1 and 3, half and half: the longer is 3 in three of four pairs."""
    found = batch_shapes(np.tile([1, 3], 20_000), Batching(2))
    assert found.step_tokens == pytest.approx(2 * (3 * 0.75 + 1 * 0.25), rel=0.01)
    assert found.padded


def test_both_answers_of_a_pair_are_as_long_as_the_longest():
    """Pairs (8, 2), (4, 2): four answers of 8, of which 16 hold a token."""
    found = batch_shapes(np.array([[8, 2], [4, 2]]), Batching(2))
    assert found == BatchShapes(8, 32.0, 1, 1, 16.0, padded=True)
    assert batch_shapes(np.array([[8, 2], [4, 2]]), Batching(1, by_length=True)).step_tokens == 12.0  # 16 and 8
    assert batch_shapes(np.array([[4, 4]]), Batching(1)) == BatchShapes(4, 8.0, 1, 1, 8.0, padded=False)
