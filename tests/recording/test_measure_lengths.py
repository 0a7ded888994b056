"""Documents and lengths of hand-made batches."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.estimate.flops import MicroBatch
from hf_efficient.recording.lengths import (
    LENGTH_BOUNDS,
    document_starts,
    documents_of_rows,
    documents_of_starts,
    sequence_counts,
)
from hf_efficient.records.steps import SequenceCounts


def test_bounds_are_a_quarter_of_an_octave_apart():
    assert LENGTH_BOUNDS[:21] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 23, 27, 32, 38, 45, 54, 64, 76)
    assert LENGTH_BOUNDS[-1] == 2**24
    assert {2**octave for octave in range(25)} <= set(LENGTH_BOUNDS)


def test_sequences_by_hand():
    batches = [MicroBatch(2, 40, [40, 17]), MicroBatch(1, 60, [16, 32, 12])]
    assert sequence_counts(batches) == SequenceCounts(
        rows=3, documents=5, shortest=12, longest=40, length_buckets={"13": 1, "16": 1, "19": 1, "32": 1, "45": 1}
    )


def test_a_document_beyond_every_bound_is_in_the_last_bucket():
    found = sequence_counts([MicroBatch(1, 2**25, [2**25])])
    assert found.length_buckets == {str(2**24): 1}
    assert found.longest == 2**25


def test_nothing_is_not_zero():
    assert sequence_counts([]) is None
    assert sequence_counts([MicroBatch(2, 4, [])]) is None


def test_rows_of_a_mask():
    """Padded on the right, on the left, not at all, and a row without a token."""
    mask = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    assert documents_of_rows(mask.sum(-1)) == [2, 3, 4]


@pytest.mark.parametrize(
    ("positions", "shape", "documents"),
    [
        ([[0, 1, 2, 0, 1]], (1, 5), [3, 2]),
        ([[0, 1, 2, 3, 4]], (1, 5), [5]),
        ([[0, 1, 0], [0, 0, 1]], (2, 3), [2, 1, 1, 2]),
        ([[0, 1, 2]], (2, 3), [3, 3]),  # one row of positions for all
        ([[0, 1, 0, 0]], (1, 4), [2, 1, 1]),  # padded to a multiple: documents of one token, to the attention too
        ([[3, 4, 0, 1]], (1, 4), None),  # goes on with the document of another row
        ([[0, 1], [2, 3]], (2, 2), None),
        ([[[0, 1, 2]]], (1, 3), None),
        ([[0, 1, 2]], (1, 4), None),
    ],
)
def test_documents_by_positions(positions, shape, documents):
    starts = document_starts(torch.tensor(positions), torch.Size(shape))
    assert (None if starts is None else documents_of_starts(starts)) == documents
