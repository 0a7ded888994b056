import pytest
from overhead_summary import Spread, alternating_orders, judge, median_spread


def test_every_other_round_is_the_one_before_backwards():
    orders = ["".join(order) for order in alternating_orders("AB", 5)]
    assert orders == ["AB", "BA", "AB", "BA", "AB"]


def test_all_permutations_of_three_come_once_in_six_rounds():
    orders = ["".join(order) for order in alternating_orders("ABC", 7)]
    assert orders == ["ABC", "CBA", "ACB", "BCA", "BAC", "CAB", "ABC"]


def test_the_interval_of_ten_runs_from_the_second_to_the_ninth():
    # 1 - 2 * (C(10, 0) + C(10, 1)) / 1024 = 1 - 22 / 1024
    spread = median_spread([10, 1, 9, 2, 8, 3, 7, 4, 6, 5])
    assert spread == Spread(median=5.5, low=2, high=9, confidence=1 - 22 / 1024, pairs=10)


def test_six_pairs_are_the_fewest_that_reach_95_percent():
    assert median_spread([6, 5, 4, 3, 2, 1]) == Spread(3.5, 1, 6, 1 - 2 / 64, 6)


def test_with_fewer_the_interval_is_all_of_them_and_says_what_it_is_worth():
    assert median_spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0, 0.75, 3)
    assert median_spread([4.0]) == Spread(4.0, 4.0, 4.0, 0.0, 1)


def test_one_wild_pair_moves_neither_the_median_nor_the_interval():
    calm = [1.0, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09]
    wild = [*calm[:-1], 50.0]
    assert median_spread(wild) == median_spread(calm)


def test_a_lower_confidence_narrows_the_interval():
    # 1 - 2 * (1 + 10 + 45) / 1024 = 0.890625
    assert median_spread(list(range(1, 11)), confidence=0.89) == Spread(5.5, 3, 8, 0.890625, 10)


def test_no_pairs():
    with pytest.raises(ValueError, match="no pairs"):
        median_spread([])


def test_what_lies_inside_the_spread_is_no_difference():
    spread = Spread(1.004, 0.998, 1.011, 0.96, 9)
    assert spread.holds(1.0)
    assert not spread.holds(0.99)
    assert not Spread(1.004, 1.001, 1.011, 0.96, 9).holds(1.0)


def test_too_few_pairs_decide_nothing():
    spread = median_spread([0.5, 0.6, 0.7, 0.8, 0.9])  # 1 - 2 / 32
    assert spread.confidence == 0.9375
    assert not spread.is_sure
    assert judge(spread, 1.0) == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.9, 1.01, "met"), (0.9, 1.02, "undecided"), (1.011, 1.02, "missed")]
)
def test_a_target_is_met_only_with_the_whole_interval(low, high, verdict):
    assert judge(Spread(1.0, low, high, 0.96, 9), 1.01) == verdict
