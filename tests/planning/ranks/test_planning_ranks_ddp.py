"""Buckets of gradients."""

from __future__ import annotations

import pytest

from hf_efficient.planning.ranks.rank import bucket_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("gradients", "buckets"),
    [
        ([0.5, 0.75, 20, 10, 3], [1.25, 30, 3]),
        ([1, 25, 25], [1, 25, 25]),  # closed as soon as it holds its limit
        ([0.25], [0.25]),
        ([100], [100]),
        ([], []),
    ],
)
def test_each_is_closed_once_it_holds_its_limit(gradients, buckets):
    assert bucket_bytes(int(one * MIB) for one in gradients) == [int(one * MIB) for one in buckets]
