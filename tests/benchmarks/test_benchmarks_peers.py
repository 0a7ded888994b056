"""The table of peers: ratios by hand, and an arm that does not learn."""

import pytest
from peers import _figures, _summary, _table, learns

FALLING, FLAT = [3.0, 2.5, 2.0], [1.0, 1.0, 1.0]


def figures(tokens_per_second=100.0, losses=FALLING, norms=FLAT):
    return {
        **{"tokens_per_second": tokens_per_second, "peak_host_bytes": 2**30, "padding_share": 0.25},
        **{"losses": losses, "gradient_norms": norms},
    }


@pytest.mark.parametrize(
    ("losses", "norms", "expected"),
    [(FALLING, FLAT, True), (FALLING, [1.0, 0.0, 1.0], False), (FALLING[::-1], FLAT, False), (FLAT, FLAT, False)],
)
def test_an_arm_learns_where_it_has_gradients_and_its_loss_falls(losses, norms, expected):
    assert learns(figures(losses=losses, norms=norms)) is expected


def test_an_arm_that_does_not_learn_is_refused_in_the_table():
    runs = {"a": [figures(), figures(50.0)], "b": [figures(300.0, norms=[0.0] * 3), figures(200.0)]}
    told = _summary(runs, {"a": "first", "b": "fast, and learns nothing"})
    assert told["b"]["ratio_to_a"]["median"] == 3.5  # of 300/100 and 200/50
    first, second = _table(told).splitlines()[2:]
    assert first.endswith("| yes |")
    assert second.endswith("| NO: refused |")


def test_the_first_three_steps_are_left_out_and_padding_is_no_token():
    found = _figures([9.0, 9.0, 9.0, 2.0, 4.0], [(300, 400)] * 5, [3.0] * 5, [1.0] * 5)
    assert found["tokens_per_second"] == 112.5  # the median of 150 and 75
    assert found["padding_share"] == 0.25
