"""Percentiles by hand and against numpy; warm-up by its rule."""

from __future__ import annotations

import random

import numpy
import pytest

from hf_efficient.estimate.statistics import percentile, warm_up_count


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([1.0, 2.0, 4.0, 8.0], 0.95, 7.4),
        ([1.0, 2.0, 4.0, 8.0], 0.5, 3.0),
        ([1.0, 2.0, 4.0, 8.0], 0.0, 1.0),
        ([1.0, 2.0, 4.0, 8.0], 1.0, 8.0),
        ([1.0, 9.0], 1, 9.0),
        ([3.0], 0.99, 3.0),
        ([10.0, 20.0, 30.0], 0.5, 20.0),
    ],
)
def test_percentiles_by_hand(values, share, expected):
    assert percentile(values, share) == pytest.approx(expected, abs=1e-12)
    assert percentile(numpy.array(values), share) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0])
def test_percentiles_are_numpy_s_default(share):
    values = sorted(random.Random(0).lognormvariate(0, 1) for _ in range(997))
    assert percentile(values, share) == pytest.approx(float(numpy.percentile(values, 100 * share)), rel=1e-12)


def test_nothing_has_no_percentile():
    assert percentile([], 0.5) is None


@pytest.mark.parametrize("share", [1.1, -0.1, float("nan")])
def test_a_share_is_at_most_all(share):
    with pytest.raises(ValueError, match=f"^share {share} is outside 0 to 1$"):
        percentile([1.0], share)


def test_warm_up():
    assert [warm_up_count(steps) for steps in (0, 1, 2, 3, 4, 5, 6, 7, 1000)] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
