"""Pairs of query and key, counted by enumeration."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.flops import Workload, causal_pairs, square_pairs


@pytest.mark.parametrize(("length", "window", "pairs"), [(4, None, 10), (4, 2, 7), (4, 4, 10), (4, 9, 10), (1, 1, 1)])
def test_causal_pairs_by_hand(length, window, pairs):
    assert causal_pairs({length: 1}, window) == pairs


@pytest.mark.parametrize("window", [None, 1, 3, 5, 50])
def test_causal_pairs_by_enumeration(window):
    lengths = {1: 2, 4: 1, 9: 3}
    seen = [
        (query, key)
        for length, count in lengths.items()
        for _ in range(count)
        for query in range(length)
        for key in range(query + 1)
        if window is None or query - key < window
    ]
    assert causal_pairs(lengths, window) == len(seen)


def test_square_pairs():
    assert square_pairs({3: 2, 5: 1}) == 43


def test_a_padded_batch():
    work = Workload.of([3, 5], rows=[5, 5])
    assert (work.document_tokens, work.row_tokens) == (8, 10)
    assert (work.needed_pairs(None), work.computed_pairs(None)) == (6 + 15, 50)


def test_a_pack_on_a_kernel_that_knows_the_documents():
    work = Workload.of([3, 5], rows=[8], masked_square=False)
    assert (work.needed_pairs(2), work.computed_pairs(2)) == (1 + 2 + 2 + 1 + 2 * 4, 14)
