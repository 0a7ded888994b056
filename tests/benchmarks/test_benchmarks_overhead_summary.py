import pytest
from overhead_cases import Target
from overhead_summary import columns, compare, verdict


def blocks(arm, wall_us, background=0.0):
    return [
        {
            "arm": arm,
            "wall_us": wall,
            "mean_wall_us": wall + 10,
            "cpu_us": 2 * wall,
            "background_cpu_us": background,
            "outside_seconds": wall / 1000,
        }
        for wall in wall_us
    ]


PLAIN = [1000.0, 2000.0, 4000.0]
SIX = [1000.0, 1100.0, 1200.0, 1300.0, 1400.0, 1500.0]


def test_rounds_are_paired_before_the_median_is_taken():
    # the machine gets four times slower; each round adds 100, 90 and 140
    held = {"plain": blocks("plain", PLAIN), "efficient": blocks("efficient", [1100.0, 2090.0, 4140.0])}
    found = compare(held, "efficient", "plain")
    assert (found.arm, found.against, found.base_wall_us) == ("efficient", "plain", 2000.0)
    assert (found.added_us.median, found.added_us.low, found.added_us.high) == (100.0, 90.0, 140.0)
    assert found.ratio.median == pytest.approx(1.045)  # of 1.1, 1.045, 1.035
    assert found.added_mean_us.median == 100.0
    assert found.added_cpu_us.median == 200.0
    assert found.added_background_cpu_us.median == 0.0
    assert found.added_outside_seconds.median == pytest.approx(0.1)
    assert found.differs is None  # three rounds


def test_no_difference_where_zero_lies_inside_the_spread():
    held = {
        "plain": blocks("plain", SIX),
        "again": blocks("again", [*(one + 5 for one in SIX[:5]), 1499.0]),
        "efficient": blocks("efficient", [one + 5 for one in SIX]),
    }
    assert compare(held, "again", "plain").differs is False
    assert compare(held, "efficient", "plain").differs is True


def test_background_that_one_block_could_not_tell_is_not_told():
    held = {"plain": blocks("plain", PLAIN), "efficient": blocks("efficient", PLAIN, background=None)}
    assert compare(held, "efficient", "plain").added_background_cpu_us is None


def test_a_target_looks_at_its_own_measure():
    added = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    slower = [one + more for one, more in zip(SIX, added, strict=True)]
    found = compare({"plain": blocks("plain", SIX), "efficient": blocks("efficient", slower)}, "efficient", "plain")
    assert verdict(found, Target("added_us", 60.0)) == "met"
    assert verdict(found, Target("added_us", 59.0)) == "undecided"
    assert verdict(found, Target("ratio", 1.05)) == "met"  # from 10 / 1000 to 60 / 1500
    assert verdict(found, Target("ratio", 1.009)) == "missed"


def test_columns_hold_every_block_in_the_order_of_the_rounds():
    held = columns({"plain": blocks("plain", [1000.04, 2000.06], background=None)})
    assert held == {
        "plain": {
            "wall_us": [1000.0, 2000.1],
            "mean_wall_us": [1010.0, 2010.1],
            "cpu_us": [2000.1, 4000.1],
            "background_cpu_us": [None, None],
            "outside_seconds": [1.0, 2.0001],
        }
    }
