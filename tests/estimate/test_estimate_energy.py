"""Joules, kilowatt-hours and grams by hand."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.energy import (
    Energy,
    co2e_grams,
    energy_from_counter,
    energy_from_cpu_seconds,
    energy_from_power,
    energy_from_tdp,
    kilowatt_hours,
)


def test_power_at_irregular_times():
    """2 s at a mean of 150 W and 1 s at 200 W."""
    assert energy_from_power([(0, 100), (2, 200), (3, 200)]) == Energy(500.0, "power_samples", 3.0, 0.0)


def test_a_gap_is_missing_and_claims_nothing():
    samples = [(0, 100), (1, 100), (21, 300), (22, 300)]
    assert energy_from_power(samples) == Energy(400.0, "power_samples", 2.0, 20.0)
    assert energy_from_power(samples, max_gap_seconds=20) == Energy(4400.0, "power_samples", 22.0, 0.0)


def test_samples_at_one_time_add_nothing():
    assert energy_from_power([(1, 100), (1, 300), (2, 300)]) == Energy(300.0, "power_samples", 1.0)


def test_samples_may_come_as_a_stream():
    assert energy_from_power(iter([(0.0, 10.0), (1.0, 10.0)])) == Energy(10.0, "power_samples", 1.0)


@pytest.mark.parametrize("samples", [[], [(0, 100)]])
def test_too_few_samples_are_no_zero(samples):
    assert energy_from_power(samples) is None
    assert energy_from_counter(samples) is None


def test_a_counter():
    assert energy_from_counter([(0, 5000), (10, 5400), (20, 6000)]) == Energy(1000.0, "counter", 20.0)


def test_a_counter_that_wraps_around():
    """80 J, then 20 J to the end of its range and 30 J from 0 on."""
    assert energy_from_counter([(0, 900), (1, 980), (2, 30)], range_joules=1000) == Energy(130.0, "counter", 2.0)


def test_a_counter_without_range_that_falls_was_reset():
    assert energy_from_counter([(0, 900), (1, 950), (4, 30), (5, 40)]) == Energy(60.0, "counter", 2.0, 3.0)


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([(1, 5), (0, 6)], "power samples run backwards: 0 s after 1 s"),
        ([(0, 5), (1, -6)], "power samples: -6 W at 1 s"),
        ([(0, 5), (1, float("nan"))], "power samples: nan W at 1 s"),
    ],
)
def test_impossible_samples_are_refused(samples, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        energy_from_power(samples)


def test_a_counter_above_its_range_is_refused():
    with pytest.raises(ValueError, match=r"^a counter of range 100 J reads 120 J$"):
        energy_from_counter([(0, 90), (1, 120)], range_joules=100)


def test_a_counter_that_runs_backwards_in_time_is_refused():
    with pytest.raises(ValueError, match=r"^counter readings run backwards: 0 s after 1 s$"):
        energy_from_counter([(1, 5), (0, 6)])


def test_an_estimate_from_tdp():
    found = energy_from_tdp(400, 3600, devices=2, utilization=0.75)
    assert found == Energy(2_160_000.0, "tdp", 3600)
    assert found.estimated
    assert energy_from_tdp(400, 3600).joules == 1_440_000.0


def test_what_was_measured_is_no_estimate():
    assert not Energy(1.0, "counter", 1.0).estimated
    assert not Energy(1.0, "power_samples", 1.0).estimated


@pytest.mark.parametrize("arguments", [{"tdp_watts": -1}, {"seconds": -1}, {"devices": -1}, {"utilization": 1.5}])
def test_an_impossible_estimate_is_refused(arguments):
    with pytest.raises(ValueError, match=r"^(an energy of|utilization 1.5 is outside)"):
        energy_from_tdp(**{"tdp_watts": 400, "seconds": 10, **arguments})


def test_kilowatt_hours_and_carbon():
    assert kilowatt_hours(9_000_000) == 2.5
    assert co2e_grams(9_000_000, 400) == 1000.0
    assert co2e_grams(9_000_000, 0) == 0.0
    assert co2e_grams(None, 400) is None
    assert co2e_grams(1.0, None) is None


def test_a_negative_intensity_is_refused():
    with pytest.raises(ValueError, match=r"^a grid intensity of -1 gCO2e/kWh$"):
        co2e_grams(1.0, -1)


def test_a_counter_with_a_range_is_not_bridged_over_a_gap_in_which_it_may_wrap_twice():
    readings = [(0, 100), (10, 200), (100, 150), (101, 160)]
    assert energy_from_counter(readings, range_joules=1000, max_gap_seconds=50) == Energy(110.0, "counter", 11.0, 90.0)
    assert energy_from_counter(readings, range_joules=1000) == Energy(1060.0, "counter", 101.0)


def test_more_than_a_device_can_draw_is_no_energy():
    """A zero told once: the fall is a reset, the climb back is 5,000 J in a second."""
    readings = [(0, 5000), (1, 5100), (2, 0), (3, 5300), (4, 5400)]
    assert energy_from_counter(readings, max_watts=1000) == Energy(200.0, "counter", 2.0, 2.0)


def test_a_counter_that_moves_in_steps_may_hold_a_whole_one():
    assert energy_from_counter([(0, 0), (0.01, 70)], max_watts=1000) == Energy(70.0, "counter", 0.01)


def test_an_estimate_from_cpu_seconds():
    found = energy_from_cpu_seconds(150, 100, cpus=2, min_watts=0.75, max_watts=3.75)
    assert found == Energy(600.0, "cpu_seconds", 100)
    assert found.estimated


def test_the_estimates_of_processes_add_up():
    """Two processes share four CPUs for 10 s: 4 * 10 * 1 idle and (30 + 5) * 2 busy, whoever tells which part."""
    whole = energy_from_cpu_seconds(35, 10, cpus=4, min_watts=1, max_watts=3).joules
    first = energy_from_cpu_seconds(30, 10, cpus=4, min_watts=1, max_watts=3).joules
    second = energy_from_cpu_seconds(5, 10, cpus=0, min_watts=1, max_watts=3).joules
    assert (whole, first, second) == (110.0, 100.0, 10.0)


@pytest.mark.parametrize("wrong", [{"cpus": -1}, {"min_watts": 5}, {"seconds": -1}, {"cpu_seconds": -1}])
def test_an_impossible_cpu_estimate_is_refused(wrong):
    settings = {"cpu_seconds": 1, "seconds": 1, "cpus": 1, "min_watts": 1, "max_watts": 2, **wrong}
    with pytest.raises(ValueError, match=r"^an energy of "):
        energy_from_cpu_seconds(settings.pop("cpu_seconds"), settings.pop("seconds"), **settings)
