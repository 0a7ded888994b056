from __future__ import annotations

import pytest

from hf_efficient.estimate.throughput import slowdown


def test_medians_times_the_steps():
    # Others: median 1.1, quartiles 1.05 and 1.15; one checkpoint of 30 s is no matter. Under: median 1.6.
    told = slowdown([1.5, 1.6, 9.0], [1.0, 1.1, 1.1, 1.2, 30.0])
    assert told.seconds == pytest.approx(3 * (1.6 - 1.1))
    assert told.why == "its steps compared with 5 others, by their medians"


def test_a_difference_inside_the_spread_is_none():
    # Quartiles of the others: 1.25 and 1.75; the medians differ by 0.4.
    told = slowdown([1.9], [1.0, 1.5, 2.0, 1.25, 1.75])
    assert (told.seconds, "within their spread" in told.why) == (0.0, True)


def test_faster_steps_cost_nothing():
    assert slowdown([0.5, 0.5], [1.0, 1.0, 1.0]).seconds == 0.0


@pytest.mark.parametrize(("under", "others"), [([], [1.0] * 9), ([2.0], [1.0, 1.0])])
def test_what_cannot_be_compared_is_not_known(under, others):
    assert slowdown(under, others).seconds is None
