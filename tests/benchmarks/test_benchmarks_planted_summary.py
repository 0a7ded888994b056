import pytest
from planted_runs.summary import Score, check_gain, confusion, judge_findings, score

WARNED = judge_findings("slow_storage", ["data_storage", "few_workers"], [("few_workers", "warning")])
MISTAKEN = judge_findings("leak", ["memory_growth"], [("saves_cost", "warning"), ("memory_growth", "info")])
MISSED = judge_findings("masked", ["masked_labels"], [])
QUIET = judge_findings("healthy_full", [], [("padding_waste", "info")])
ALARMED = judge_findings("healthy_lora", [], [("data_transform", "info"), ("saves_cost", "warning")])


def test_a_fault_is_found_where_an_expected_rule_stands_first_and_a_healthy_run_has_no_warning():
    assert [one.right for one in (WARNED, MISTAKEN, MISSED, QUIET, ALARMED)] == [True, False, False, True, False]
    assert [one.first for one in (WARNED, MISTAKEN, MISSED)] == ["few_workers", "saves_cost", None]
    assert (WARNED.others, MISTAKEN.others) == ((), ("memory_growth",))
    assert MISTAKEN.alarms == ALARMED.alarms == ("saves_cost",)


def test_the_score_counts_faults_and_healthy_runs_apart():
    assert score([WARNED, MISTAKEN, MISSED, QUIET, ALARMED]) == Score(right=1, faults=3, quiet=1, healthy=2)


def test_what_is_confused_with_what():
    assert confusion([WARNED, WARNED, MISTAKEN, MISSED, QUIET, ALARMED]) == {
        ("data_storage", "data_storage"): 2,
        ("memory_growth", "saves_cost"): 1,
        ("masked_labels", "nothing"): 1,
        ("healthy", "nothing"): 1,
        ("healthy", "saves_cost"): 1,
    }


def test_a_gain_is_of_the_means_and_its_noise_of_the_wider_side():
    check = check_gain(0.25, before=[10, 10], after=[7, 9])
    assert check.achieved == pytest.approx(0.2)
    assert check.ratio == pytest.approx(0.8)
    assert check.within is True
    assert check.noise == pytest.approx(1 / 8)


@pytest.mark.parametrize(("predicted", "within"), [(0.49, True), (0.51, False), (0.126, True), (0.124, False)])
def test_a_gain_is_as_predicted_from_half_to_twice(predicted, within):
    assert check_gain(predicted, before=[4], after=[3]).within is within  # 0.25


def test_a_remedy_that_slows_down_did_not_come_true():
    check = check_gain(0.2, before=[10], after=[11])
    assert (check.achieved, check.ratio) == (pytest.approx(-0.1), pytest.approx(-0.5))
    assert (check.within, check.noise) == (False, 0)
    check = check_gain(None, before=[10], after=[5])
    assert (check.achieved, check.ratio, check.within) == (0.5, None, None)
