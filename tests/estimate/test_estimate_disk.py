"""Checkpoints on a disk, by hand."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.cost import checkpoints_at_once, disk_needed


@pytest.mark.parametrize(
    ("saves", "limit", "keeps_best", "there", "expected"),
    [
        (12, None, False, 0, 12),
        (12, 0, False, 0, 12),
        (12, 2, False, 0, 3),
        (12, 2, True, 0, 4),
        (2, 5, False, 0, 2),
        (12, None, False, 4, 8),
        (12, 2, False, 2, 1),
        (3, None, False, 5, 0),
    ],
)
def test_checkpoints_that_lie_there_together(saves, limit, keeps_best, there, expected):
    assert checkpoints_at_once(saves, limit, keeps_best=keeps_best, there=there) == expected


def test_bytes_of_all_that_is_to_come():
    assert disk_needed(3, 100, 40) == 340
    assert disk_needed(3, 100, 40, 1000) == 1340
