"""Money, spot machines and disk space, by hand and against Daly's own figures."""

import math

import pytest

from hf_efficient.estimate.cost import (
    SpotRun,
    checkpoints_at_once,
    cost_per_million_tokens,
    cost_usd,
    daly_interval,
    disk_needed,
    phase_costs,
    spot_cost_usd,
    spot_run,
    young_interval,
)


def test_a_run_and_a_million_tokens():
    """1.5 h * 2.40 USD * 8 GPUs."""
    assert cost_usd(5400, 2.40, 8) == pytest.approx(28.80, abs=1e-12)
    # 28.80 USD for 96 million tokens.
    assert cost_per_million_tokens(28.80, 96_000_000) == pytest.approx(0.30, abs=1e-12)


@pytest.mark.parametrize(("price", "cost"), [(None, None), (0.0, 0.0)])
def test_unknown_and_free(price, cost):
    assert cost_usd(5400, price, 8) == cost


@pytest.mark.parametrize(
    ("cost", "tokens", "expected"), [(None, 5, None), (1.0, None, None), (1.0, 0, None), (0.0, 5, 0.0)]
)
def test_a_million_tokens_without_figures(cost, tokens, expected):
    assert cost_per_million_tokens(cost, tokens) == expected


def test_phases():
    assert phase_costs({"forward": 1800, "evaluation": 900}, 4.0) == {"forward": 2.0, "evaluation": 1.0}
    assert phase_costs({"forward": 1800}, 4.0, 2) == {"forward": 4.0}
    assert phase_costs({"forward": 1800}, 0.0) == {"forward": 0.0}
    assert phase_costs({"forward": 1800}, None) is None


MINUTE, HOUR = 60.0, 3600.0


def test_young():
    assert young_interval(60, 2 * HOUR) == pytest.approx(929.516, abs=1e-3)


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


def test_a_run_on_spot_machines():
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
    # 2.5 h in pieces of 1 h: two of 1.1 h and one of 0.6 h.
    run = spot_run(2.5 * HOUR, 6 * MINUTE, 10 * HOUR, interval_seconds=HOUR)
    assert run.checkpoints == 3
    assert run.paid_seconds == pytest.approx(10 * HOUR * (2 * 0.1162780704 + 0.0618365465), rel=1e-9)
    assert spot_run(0.3, 1, 10, interval_seconds=0.1).checkpoints == 3
    assert spot_run(3 * 0.1, 1, 10, interval_seconds=0.1).checkpoints == 3
    assert spot_run(10 * HOUR, 60, 2 * HOUR).interval_seconds == daly_interval(60, 2 * HOUR)
    assert spot_run(100, 60, 2 * HOUR).interval_seconds == 100
    # Nothing is lost; one save at the end, or every 30 s, or no work and no save.
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
