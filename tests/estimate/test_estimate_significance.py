"""Two sides compared: by hand, as benchstat publishes it, and how often noise is taken for a difference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hf_efficient.estimate.significance import (
    Steps,
    compared_rounds,
    compared_runs,
    compared_steps,
    judge_gain,
    looked_at_rounds,
    needed,
    rate_spread,
    saved_share,
    saved_spread,
)
from hf_efficient.estimate.statistics import fewest_runs, mann_whitney, median_spread, student_t

BENCHSTAT = json.loads(Path(__file__).with_name("benchstat.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("row", BENCHSTAT, ids=lambda row: row["name"])
def test_what_benchstat_publishes(row):
    found = compared_runs(row["old"], row["new"])
    assert f"{found.p_value:.3f}" == row["p"]
    assert (f"{100 * (found.ratio - 1):+.2f}%" if found.differs else "~") == row["change"]
    for side, printed in (("old", row["old_range"]), ("new", row["new_range"])):
        spread = median_spread(row[side])
        reach = max(spread.high / spread.median - 1, 1 - spread.low / spread.median)
        assert f"{100 * reach:.0f}" == str(printed)


def test_ranks_by_hand():
    assert mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    # benchstat, issue19634: four of five are tied; C(10, 5) = 252 choices, one as extreme on either side
    assert mann_whitney([115, 114, 115, 115, 115], [78.8] * 5) == pytest.approx(2 / 252)
    assert mann_whitney([100], [101]) == mann_whitney([1, 1], [1, 1, 1]) == 1.0
    # 1, 2 | 2, 3: doubled ranks 2, 5, 5, 8; sums of two: 7, 7, 10, 10, 13, 13; at most 7 has 2 of 6
    assert mann_whitney([1, 2], [2, 3]) == pytest.approx(2 * 2 / 6)
    assert (fewest_runs(), fewest_runs(0.001)) == (4, 7)  # 2 / 70; 2 / 3432, and 2 / 924 is not enough
    assert compared_runs([], [1.0]) is None


@pytest.mark.parametrize(
    ("error", "freedom", "value"),
    [(0.05, 1, 12.7062), (0.05, 2, 4.3027), (0.05, 7, 2.3646), (0.001, 30, 3.6460), (0.05, 1000, 1.9623)],
)
def test_students_t_as_tabulated(error, freedom, value):
    assert student_t(error, freedom) == pytest.approx(value, abs=1e-4)


def noise(steps, correlation, seed, deviation=0.05):
    generator, values = np.random.default_rng(seed), np.zeros(steps)
    shocks = generator.normal(0, deviation, steps)
    for place in range(1, steps):
        values[place] = correlation * values[place - 1] + shocks[place]
    return np.exp(values)


@pytest.mark.parametrize("of", ["mean", "median", "p95"])
def test_a_planted_slowdown_and_none(of):
    tokens = np.random.default_rng(0).integers(50, 500, 200).astype(float)
    before = Steps(tokens * noise(200, 0.3, 1, 0.01), tokens)
    after = Steps(1.03 * tokens * noise(200, 0.3, 2, 0.01), tokens)
    found = compared_steps(before, after, paired=True, of=of)
    assert found.differs
    assert found.low < 1.03 < found.high
    assert (found.method, found.count) == ("paired_steps", 200)
    assert not compared_steps(before, Steps(tokens * noise(200, 0.3, 2, 0.01), tokens), paired=True, of=of).differs


def test_pairs_see_what_runs_alone_hide():
    lengths = np.random.default_rng(0).uniform(0.5, 2, 100)
    before, after = Steps(lengths * noise(100, 0, 1, 0.02)), Steps(1.03 * lengths * noise(100, 0, 2, 0.02))
    paired, alone = (compared_steps(before, after, paired=paired) for paired in (True, False))
    assert paired.differs
    assert not alone.differs
    assert alone.standard_error > 5 * paired.standard_error
    # as many steps as it says then show the difference
    more = needed(alone, 0.03)
    assert 1_000 < more < 100_000
    assert needed(alone, -0.03) == pytest.approx(more, rel=0.1)
    assert needed(paired, 0.03) < 100
    assert needed(paired, 0) is None


def test_neighbours_that_are_alike_widen_the_interval():
    alike, independent = (
        compared_steps(Steps(noise(400, rho, 1)), Steps(noise(400, rho, 2)), paired=False, of="mean")
        for rho in (0.8, 0)
    )
    assert alike.block > independent.block
    # an AR(1) with 0.8 has a mean that is 5 times as uncertain
    assert alike.standard_error > 3 * independent.standard_error


def test_runs_of_different_lengths_and_of_few_steps():
    assert compared_steps(Steps(np.ones(7)), Steps(np.ones(100)), paired=True) is None
    assert compared_steps(Steps(noise(50, 0, 1)), Steps(noise(80, 0, 2)), paired=True).count == 50
    assert compared_steps(Steps(noise(50, 0, 1)), Steps(2 * noise(80, 0, 2)), paired=False).differs
    equal = compared_steps(Steps(np.ones(8)), Steps(np.ones(8)), paired=True)
    assert (equal.ratio, equal.low, equal.high, equal.differs) == (1.0, 1.0, 1.0, False)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_is_seldom_taken_for_a_difference(paired, correlation):
    claims = sum(
        compared_steps(
            Steps(noise(100, correlation, seed)), Steps(noise(100, correlation, seed + 1000)), paired=paired, of="mean"
        ).differs
        for seed in range(60)
    )
    assert claims <= 7  # 3 are expected of an exact test; more than 7 come with 0.8%


def test_rounds_by_hand():
    # logarithms -0.2231 and -0.1054: mean -0.1643, standard error 0.0589, times 12.706
    found = compared_rounds([10, 10], [8, 9])
    assert (found.ratio, found.low, found.high) == pytest.approx((0.8485, 0.4015, 1.7933), abs=1e-4)
    assert not found.differs
    assert compared_rounds([10], [8]) is None
    # what others measured before: 3 more degrees of freedom, of a variance of 0.0001 each
    earlier = [[0.0, 0.01, 0.02], [0.5, 0.5 + 0.01 * math.sqrt(2)]]
    alone = compared_rounds([10], [8], earlier=earlier)
    assert alone.standard_error == pytest.approx(0.01)
    assert alone.high == pytest.approx(0.8 * math.exp(3.1824 * 0.01), rel=1e-4)
    assert alone.differs


def test_all_looks_together_keep_the_error():
    generator, claims = np.random.default_rng(0), 0
    for _ in range(400):
        after = np.exp(generator.normal(0, 0.02, 6)).tolist()
        looks = (looked_at_rounds([1.0] * k, after[:k], 6) for k in range(1, 7))
        claims += any(look is not None and look.differs for look in looks)
    assert claims <= 30  # 20 are the most expected
    # the first look has the share of the round before it too, unless that was looked at
    assert looked_at_rounds([10.0, 10.0], [5.0, 5.01], 5).error == pytest.approx(0.02)
    assert looked_at_rounds([10.0] * 2, [5.0, 5.01], 5, earlier=[[0.0, 0.01]]).error == pytest.approx(0.01)
    assert looked_at_rounds([10.0], [5.0], 5) is None
    with pytest.raises(ValueError, match="6 rounds of at most 5"):
        looked_at_rounds([1.0] * 6, [1.0] * 6, 5)


T_7 = 2.364624  # Student's t, 97.5% with 7 degrees of freedom
ODD = [1.0] * 7 + [3.0]
TOKENS = [100] * 8


def test_what_is_saved():
    assert saved_share(0.03, 0.024) == pytest.approx(0.2)
    assert saved_share(0.03, 0.036) == pytest.approx(-0.2)
    assert saved_spread(0.4, 0.03, 0.04) == pytest.approx(0.03)


def test_the_spread_of_a_rate():
    assert rate_spread([1.0, 2.0] * 4, [100, 200] * 4, []) == pytest.approx(0, abs=1e-12)
    assert rate_spread(ODD, TOKENS, []) == pytest.approx(T_7 * 2 / 10)
    # Each block holds a fast and a slow step: 16 steps that alternate vary no more than 8 alike.
    assert rate_spread([1.0, 3.0] * 8, [100] * 16, []) == pytest.approx(0, abs=1e-12)
    assert rate_spread([1.0] * 14 + [3.0] * 2, [100] * 16, []) == pytest.approx(T_7 * 2 / 10)
    # 9 steps: blocks of one, and the last of two; S = 12, T = 900, r t = 4/3 of a single step.
    residuals = [1 - 4 / 3] * 7 + [5 - 8 / 3]
    variance = 8 / 7 * sum(one**2 for one in residuals)
    assert rate_spread([1.0] * 8 + [4.0], [100] * 9, []) == pytest.approx(T_7 * math.sqrt(variance) / 12)
    assert rate_spread(ODD, TOKENS, [[2.0, 4.0]]) == pytest.approx(T_7 * math.sqrt(8) / 16)
    assert rate_spread([1.0] * 8, TOKENS, [[5.0] * 4, [9.0]]) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("seconds", "tokens"), [([1.0] * 7, [1] * 7), ([1.0] * 8, [0] * 8), ([0.0] * 8, [1] * 8)])
def test_too_little_has_no_spread(seconds, tokens):
    assert rate_spread(seconds, tokens, []) is None


@pytest.mark.parametrize(
    ("achieved", "spread", "outcome"),
    [
        (0.2, 0.05, "as_predicted"),
        (0.14, 0.05, "below_half"),
        (0.61, 0.05, "above_twice"),
        (0.02, 0.05, "no_difference"),
        (-0.02, 0.05, "no_difference"),
        (0.2, 0.25, "hidden"),  # 0 and 0.3 both lie within 0.2 +- 0.25
        (0.02, 0.29, "hidden"),
        (0.02, 0.27, "no_difference"),
        (-0.1, 0.05, "worse"),
        (0.0, 0.0, "no_difference"),
    ],
)
def test_an_achieved_gain_of_three_tenths_predicted(achieved, spread, outcome):
    assert judge_gain(0.3, achieved, spread) == outcome
