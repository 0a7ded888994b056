"""Intervals against Daly's paper, expected times by hand and against runs that are drawn at random."""

from __future__ import annotations

import math
import random

import pytest

from hf_efficient.estimate.cost import SpotRun, daly_interval, spot_cost_usd, spot_run, young_interval

MINUTE, HOUR = 60.0, 3600.0


def test_young():
    assert young_interval(60, 2 * HOUR) == pytest.approx(929.516, abs=1e-3)


@pytest.mark.parametrize(
    ("mean", "printed"),
    [(24 * HOUR, "117"), (6 * HOUR, "57"), (15 * MINUTE, "9.1")],
)
def test_the_intervals_that_daly_prints(mean, printed):
    """Captions of his figures 3, 4 and 5, for saves of 5 min."""
    minutes = daly_interval(5 * MINUTE, mean) / MINUTE
    assert f"{minutes:.0f}" == printed or f"{minutes:.1f}" == printed


def test_daly_where_a_save_is_long():
    """At delta = 2 M and beyond: M."""
    assert daly_interval(200, 100) == 100
    assert daly_interval(199, 100) == pytest.approx(199.499 * (1 + 0.997497 / 3 + 0.995 / 9) - 199, abs=1e-3)
    assert daly_interval(1000, 100) == 100


@pytest.mark.parametrize(("save", "mean"), [(30.0, 2 * HOUR), (5 * MINUTE, 6 * HOUR), (5 * MINUTE, 15 * MINUTE)])
def test_daly_solves_the_equation_of_the_optimum(save, mean):
    """At the optimum e^(-(tau + delta) / M) = 1 - tau / M; no interval on a fine grid costs noticeably less."""
    best = daly_interval(save, mean)
    assert math.exp(-(best + save) / mean) == pytest.approx(1 - best / mean, abs=2e-3)

    def cost(interval: float) -> float:
        return math.expm1((interval + save) / mean) / interval

    assert cost(best) <= (1 + 1e-5) * min(cost(best * part / 100) for part in range(20, 400))


def test_a_run():
    run = spot_run(
        2 * HOUR, 6 * MINUTE, 10 * HOUR, restart_seconds=12 * MINUTE, wait_seconds=HOUR, interval_seconds=HOUR
    )
    hours = 10 * 1.0202013400 * 2 * 0.1162780704
    assert run.interval_seconds == HOUR
    assert run.checkpoints == 2
    assert run.paid_seconds == pytest.approx(hours * HOUR, rel=1e-9)
    assert run.preemptions == pytest.approx(hours / 10, rel=1e-9)
    assert run.wall_seconds == pytest.approx((hours + hours / 10) * HOUR, rel=1e-9)
    assert spot_cost_usd(run, 1.20, 8) == pytest.approx(22.776, abs=1e-3)
    assert spot_cost_usd(run, None) is None


def test_the_last_piece_is_shorter():
    """2.5 h in pieces of 1 h: two of 1.1 h and one of 0.6 h."""
    run = spot_run(2.5 * HOUR, 6 * MINUTE, 10 * HOUR, interval_seconds=HOUR)
    assert run.checkpoints == 3
    assert run.paid_seconds == pytest.approx(10 * HOUR * (2 * 0.1162780704 + 0.0618365465), rel=1e-9)
    assert spot_run(0.3, 1, 10, interval_seconds=0.1).checkpoints == 3
    assert spot_run(3 * 0.1, 1, 10, interval_seconds=0.1).checkpoints == 3


def test_without_an_interval_it_is_dalys_or_the_whole_run():
    assert spot_run(10 * HOUR, 60, 2 * HOUR).interval_seconds == daly_interval(60, 2 * HOUR)
    assert spot_run(100, 60, 2 * HOUR).interval_seconds == 100


def test_machines_that_stay():
    """Nothing is lost; one save at the end, or every 30 s, or no work and no save."""
    assert spot_run(100, 5, math.inf, restart_seconds=9) == SpotRun(100, 1, 0, 105, 105)
    assert spot_run(100, 5, math.inf, interval_seconds=30) == SpotRun(30, 4, 0, 120, 120)
    none = spot_run(0, 5, 10, interval_seconds=30)
    assert (none.checkpoints, none.paid_seconds) == (0, 0)
    assert spot_run(0, 5, math.inf).paid_seconds == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((HOUR, 600, 300, 0, None), "600 s to save are too long where machines are taken away every 300 s on"),
        ((HOUR, 1, 300, 300, None), "300 s to restart are too long where machines are taken away every 300 s on"),
        ((HOUR, 1, 4, 0, 3000), "a save every 3000 s of work is too seldom for a preemption every 4 s on"),
    ],
)
def test_a_run_that_would_not_end_says_why(arguments, told):
    work, save, mean, restart, interval = arguments
    run = spot_run(work, save, mean, restart_seconds=restart, interval_seconds=interval)
    assert run == SpotRun(None, None, None, None, None, f"{told} average")
    assert spot_cost_usd(run, 1.0) is None


def drawn(rng: random.Random, work: float, save: float, mean: float, restart: float, interval: float):
    """Running time and preemptions of one run, event by event."""
    clock, taken, done = 0.0, 0, 0.0
    left = rng.expovariate(1 / mean)
    while done < work:
        piece = min(interval, work - done) + save
        while left < piece:
            clock, taken = clock + left, taken + 1
            left = rng.expovariate(1 / mean)
            while left < restart:
                clock, taken = clock + left, taken + 1
                left = rng.expovariate(1 / mean)
            clock, left = clock + restart, left - restart
        clock, left, done = clock + piece, left - piece, done + piece - save
    return clock, taken


@pytest.mark.parametrize(
    ("work", "save", "mean", "restart", "interval"),
    [
        (10 * HOUR, 60, 2 * HOUR, 300, None),
        (5 * HOUR, 5 * MINUTE, 30 * MINUTE, 10 * MINUTE, 20 * MINUTE),
        (HOUR, 30, 4 * HOUR, 600, 25 * MINUTE),
    ],
)
def test_runs_drawn_at_random_take_as_long(work, save, mean, restart, interval):
    run = spot_run(work, save, mean, restart_seconds=restart, interval_seconds=interval)
    rng = random.Random(1974)
    runs = [drawn(rng, work, save, mean, restart, run.interval_seconds) for _ in range(6000)]
    assert sum(clock for clock, _ in runs) / len(runs) == pytest.approx(run.paid_seconds, rel=0.02)
    assert sum(taken for _, taken in runs) / len(runs) == pytest.approx(run.preemptions, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1, 5, 10), "work of -1 s"),
        ((1, 0, 10), "a save of 0 s; write a positive number"),
        ((1, math.inf, 10), "a save of inf s; write a positive number"),
        ((1, 5, 0), "a preemption every 0 s; write a positive number, or infinity for none"),
        ((1, 5, math.nan), "a preemption every nan s; write a positive number, or infinity for none"),
    ],
)
def test_impossible_figures_are_refused(arguments, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        spot_run(*arguments)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"restart_seconds": -1}, "a restart of -1 s"),
        ({"wait_seconds": math.inf}, "a wait of inf s"),
        ({"interval_seconds": 0}, "a save every 0 s of work"),
    ],
)
def test_impossible_settings_are_refused(settings, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        spot_run(100, 5, 1000, **settings)
