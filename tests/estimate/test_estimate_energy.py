"""Energy between readings, estimates of it, carbon, and what a meter can read, by hand."""

import math

import pytest

from hf_efficient.estimate.energy import (
    believable,
    co2e_grams,
    energy_from_cpu_seconds,
    energy_from_tdp,
    joules_between,
    kilowatt_hours,
)


@pytest.mark.parametrize(
    ("before", "after", "joules"),
    [((0, 100), (2, 200), 300), ((0, 100), (10, 300), 2000), ((10, 300), (21, 300), None)],
)
def test_power_is_bridged_over_ten_seconds(before, after, joules):
    assert joules_between(before, after, "watts") == joules


@pytest.mark.parametrize(
    ("before", "after", "counted_to", "joules"),
    [
        ((0, 100), (7200, 500_100), None, 500_000),  # any gap
        ((2, 980), (3, 30), None, None),  # a reset
        ((0, 0), (1, 20_001), None, None),  # no device draws that
        ((0, 0), (0.01, 70), None, 70),  # a counter that moves in steps
        ((1, 980), (2.5, 30), 1000, None),  # a kilowatt could wrap it once a second
        ((1, 980), (1.9, 30), 1000, 50),  # 20 J to the end of its range and 30 J from 0 on
        ((262, 100), (525, 200), 262_144, None),
        ((525, 200), (526, 50), 262_144, None),  # more than a device draws
    ],
)
def test_a_counter(before, after, counted_to, joules):
    assert joules_between(before, after, "joules", counted_to) == joules


def test_estimates_and_units():
    assert energy_from_tdp(400, 3600, devices=2) == 2_880_000.0
    assert kilowatt_hours(9_000_000) == 2.5
    assert co2e_grams(9_000_000, 400) == 1000.0
    assert (co2e_grams(9_000_000, 0), co2e_grams(None, 400), co2e_grams(1.0, None)) == (0.0, None, None)
    assert energy_from_cpu_seconds(150, 100, cpus=2, min_watts=0.75, max_watts=3.75) == 600.0
    # Two processes share four CPUs for 10 s: 4 * 10 * 1 idle and (30 + 5) * 2 busy, whoever computes which part.
    whole = energy_from_cpu_seconds(35, 10, cpus=4, min_watts=1, max_watts=3)
    first = energy_from_cpu_seconds(30, 10, cpus=4, min_watts=1, max_watts=3)
    second = energy_from_cpu_seconds(5, 10, cpus=0, min_watts=1, max_watts=3)
    assert (whole, first, second) == (110.0, 100.0, 10.0)


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
