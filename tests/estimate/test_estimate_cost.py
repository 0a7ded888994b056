"""Money, spot machines, disk space, energy and carbon, by hand and against Daly's own figures."""

import math

import numpy as np
import pytest

from hf_efficient.estimate.cost import (
    SpotRun,
    believable,
    checkpoints_at_once,
    co2e_grams,
    cost_per_million_tokens,
    cost_usd,
    daly_interval,
    energy_from_cpu_seconds,
    energy_from_tdp,
    joules_between,
    kilowatt_hours,
    observed_mean,
    seconds_undone,
    spot_run,
)


def test_a_run_and_a_million_tokens():
    assert [cost_usd(5400, price) for price in (2.40, 0.0, None)] == [pytest.approx(3.60), 0.0, None]
    assert cost_per_million_tokens(28.80, 96_000_000) == pytest.approx(0.30, abs=1e-12)
    unknown = [(None, 5), (1.0, None), (1.0, 0)]
    assert [cost_per_million_tokens(*known) for known in unknown] == [None, None, None]
    assert cost_per_million_tokens(0.0, 5) == 0.0


MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(("mean", "printed"), [(24 * HOUR, "117"), (6 * HOUR, "57"), (15 * MINUTE, "9.1")])
def test_the_intervals_that_daly_prints(mean, printed):
    """Captions of his figures 3, 4 and 5, for saves of 5 min."""
    minutes = daly_interval(5 * MINUTE, mean) / MINUTE
    assert f"{minutes:.0f}" == printed or f"{minutes:.1f}" == printed


@pytest.mark.parametrize(("save", "mean"), [(30.0, 2 * HOUR), (5 * MINUTE, 6 * HOUR), (5 * MINUTE, 15 * MINUTE)])
def test_daly_solves_the_equation_of_the_optimum(save, mean):
    """At the optimum e^(-(tau + delta) / M) = 1 - tau / M; no interval on a fine grid costs noticeably less."""
    best = daly_interval(save, mean)
    assert math.exp(-(best + save) / mean) == pytest.approx(1 - best / mean, abs=2e-3)

    def cost(interval: float) -> float:
        return math.expm1((interval + save) / mean) / interval

    assert cost(best) <= (1 + 1e-5) * min(cost(best * part / 100) for part in range(20, 400))


def test_what_a_failure_undoes():
    """A piece as long as the mean time between failures: M - M / (e - 1). A short one: half of it."""
    assert seconds_undone(3000.0, 600.0, 3600.0) == pytest.approx(3600 * (1 - 1 / (math.e - 1)), rel=1e-12)
    assert seconds_undone(90.0, 10.0, 1e9) == pytest.approx(50.0, rel=1e-6)
    x = 1.001e-3  # where the series ends
    assert seconds_undone(x * HOUR, 0.0, HOUR) == pytest.approx(x * HOUR * (0.5 - x / 12), rel=1e-9)
    assert seconds_undone(1e9, 0.0, HOUR) == HOUR


def test_an_assumption_counts_as_one_failure():
    assert observed_mean(24 * HOUR, 0, 0.0) == 24 * HOUR
    assert observed_mean(24 * HOUR, 3, 8 * HOUR) == 8 * HOUR
    assert observed_mean(24 * HOUR, 0, 24 * HOUR) == 48 * HOUR


def lost_per_work(interval: float, save: float, mean: float, restart: float, runs: int = 10_000) -> float:
    """Seconds beyond the work, per second of work, over so many runs of 20 mean times between failures, drawn from the
    exponential distribution. A restart can be cut short too; what a finished save holds stays."""
    draw = np.random.default_rng(0).exponential
    pieces = max(1, round(20 * mean / interval))
    left, ready, total = np.full(runs, pieces), 0.0, 0.0
    while left.size:
        until = draw(mean, left.size)
        whole = np.maximum(until - ready, 0) // (interval + save)
        done = whole >= left
        total += np.where(done, ready + left * (interval + save), until).sum()
        left, ready = (left - whole)[~done], restart
    return total / (runs * pieces * interval) - 1


@pytest.mark.parametrize(("save", "mean"), [(5.0, HOUR), (30.0, 6 * HOUR), (5 * MINUTE, 2 * HOUR)])
def test_the_interval_loses_at_most_two_percent_more_than_the_best(save, mean):
    """Of what 10,000 simulated runs lose to saves, restarts and work done again, against a grid from a quarter to four
    times as long. Whole steps of a thirtieth of it, as a run saves after steps."""
    step = daly_interval(save, mean) / 30
    auto = round(daly_interval(save, mean) / step) * step
    grid = {part: lost_per_work(auto * part, save, mean, 2 * MINUTE) for part in np.geomspace(0.25, 4, 21)}
    assert lost_per_work(auto, save, mean, 2 * MINUTE) <= 1.02 * min(grid.values())
    assert min(grid[0.25], grid[4.0]) > 1.1 * min(grid.values())  # the grid holds worse ones


def test_a_run_on_spot_machines():
    run = spot_run(2 * HOUR, 6 * MINUTE, 10 * HOUR, restart_seconds=12 * MINUTE, interval_seconds=HOUR)
    hours = 10 * 1.0202013400 * 2 * 0.1162780704
    assert run.paid_seconds == pytest.approx(hours * HOUR, rel=1e-9)
    assert run.preemptions == pytest.approx(hours / 10, rel=1e-9)
    # 2.5 h in pieces of 1 h: two of 1.1 h and one of 0.6 h.
    run = spot_run(2.5 * HOUR, 6 * MINUTE, 10 * HOUR, restart_seconds=0, interval_seconds=HOUR)
    assert run.paid_seconds == pytest.approx(10 * HOUR * (2 * 0.1162780704 + 0.0618365465), rel=1e-9)


@pytest.mark.parametrize(
    ("work", "interval", "paid"),
    [(100, 100, 105), (100, 400, 105), (100, 30, 120), (0.3, 0.1, 15.3), (3 * 0.1, 0.1, 15.3), (0, 30, 0)],
)
def test_machines_that_stay_lose_nothing(work, interval, paid):
    run = spot_run(work, 5, 1e9, restart_seconds=9, interval_seconds=interval)
    assert run == SpotRun(pytest.approx(0, abs=1e-6), pytest.approx(paid))


@pytest.mark.parametrize(
    ("save", "mean", "restart", "interval", "reason"),
    [
        (600, 300, 0, HOUR, "600 s to save are too long where machines are taken away every 300 s on"),
        (1, 300, 300, HOUR, "300 s to restart are too long where machines are taken away every 300 s on"),
        (1, 4, 0, 3000, "a save every 3000 s of work is too seldom for a preemption every 4 s on"),
    ],
)
def test_a_run_that_would_not_end_has_a_reason(save, mean, restart, interval, reason):
    run = spot_run(HOUR, save, mean, restart_seconds=restart, interval_seconds=interval)
    assert run == SpotRun(None, None, f"{reason} average")


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
def test_checkpoints_on_the_disk_together(saves, limit, keeps_best, there, expected):
    assert checkpoints_at_once(saves, limit, keeps_best=keeps_best, there=there) == expected


def test_power_is_bridged_over_ten_seconds():
    starts = np.array([0.0, 0, 10]), np.array([100.0, 100, 300])
    ends = np.array([2.0, 10, 21]), np.array([200.0, 300, 300])
    np.testing.assert_array_equal(joules_between(starts, ends, "watts"), [300, 2000, np.nan])


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
    expected = math.nan if joules is None else joules
    np.testing.assert_array_equal(joules_between(before, after, "joules", counted_to), expected)


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
    "reading", [(-1, "joules"), (math.nan, "joules"), (math.inf, "watts"), (101, "joules", 100), (2e4 + 1, "watts")]
)
def test_what_no_meter_reads(reading):
    with pytest.raises(ValueError, match=f"^it reads .* {reading[1]}$"):
        believable(*reading)


def test_what_a_meter_reads():
    assert believable(1.8e12, "joules") == 1.8e12
    assert believable(700, "watts") == 700
    assert believable(100, "joules", 100) == 100
