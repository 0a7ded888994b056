from __future__ import annotations

import pytest

from hf_efficient.estimate.throughput import scaling_efficiency


def test_the_speed_of_a_rank_against_that_of_one_alone():
    assert scaling_efficiency(1500.0, 2, 1000.0) == pytest.approx(0.75)
    assert scaling_efficiency(6000.0, 8, 1500.0, 2) == pytest.approx(1.0)


def test_what_is_not_known_stays_so():
    assert scaling_efficiency(None, 2, 1000.0) is None
    assert scaling_efficiency(1500.0, 2, None) is None
    assert scaling_efficiency(1500.0, 2, 0.0) is None


def test_no_ranks_are_an_error():
    with pytest.raises(ValueError, match="at least 1"):
        scaling_efficiency(1.0, 0, 1.0)
