"""What a meter may read, and what its readings stand for."""

from __future__ import annotations

import math

import pytest

from hf_efficient.estimate.energy import Stretch, believable, stretches


@pytest.mark.parametrize(
    ("value", "unit", "range_joules"),
    [
        (-1, "joules", None),
        (math.nan, "joules", None),
        (math.inf, "watts", None),
        (101, "joules", 100),
        (2e4 + 1, "watts", None),
    ],
)
def test_what_no_meter_reads(value, unit, range_joules):
    with pytest.raises(ValueError, match=f"^it reads .* {unit}$"):
        believable(value, unit, range_joules)


def test_what_a_meter_reads():
    assert believable(1.8e12, "joules") == 1.8e12
    assert believable(700, "watts") == 700
    assert believable(100, "joules", 100) == 100


def test_power_is_bridged_over_ten_seconds():
    assert list(stretches([(0, 100), (10, 300), (21, 300)], "watts")) == [
        Stretch(0, 10, 2000.0),
        Stretch(10, 21, None),
    ]


def test_a_counter_without_range_is_bridged_over_any_gap():
    assert list(stretches([(0, 100), (7200, 500_100)], "joules")) == [Stretch(0, 7200, 500_000)]


def test_one_with_a_range_is_bridged_as_long_as_a_kilowatt_cannot_wrap_it_twice():
    found = list(stretches([(0, 0), (262, 100), (525, 200), (526, 50)], "joules", 262_144.0))
    assert found == [Stretch(0, 262, 100), Stretch(262, 525, None), Stretch(525, 526, None)]
