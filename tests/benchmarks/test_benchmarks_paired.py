import pytest
from overhead_summary import Spread, judge, median_spread

from hf_efficient.estimate.statistics import alternating_orders


def test_all_permutations_of_three_come_once_in_six_rounds():
    orders = ["".join(order) for order in alternating_orders("ABC", 7)]
    assert orders == ["ABC", "CBA", "ACB", "BCA", "BAC", "CAB", "ABC"]


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
