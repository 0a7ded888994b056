"""Money by hand; unknown is None, free is 0, negative is an error."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd, phase_costs


def test_a_run():
    """1.5 h * 2.40 USD * 8 GPUs."""
    assert cost_usd(5400, 2.40, 8) == pytest.approx(28.80, abs=1e-12)


@pytest.mark.parametrize(("price", "cost"), [(None, None), (0.0, 0.0)])
def test_unknown_and_free(price, cost):
    assert cost_usd(5400, price, 8) == cost


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((5400, -2.4), "a price of -2.4"),
        ((5400, float("inf")), "a price of inf"),
        ((-1, 2.4), "a time of -1"),
        ((1, 2.4, -8), "a number of units of -8"),
        ((-1, None), "a time of -1"),
    ],
)
def test_impossible_figures_are_refused(arguments, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        cost_usd(*arguments)


def test_a_million_tokens():
    """28.80 USD for 96 million tokens."""
    assert cost_per_million_tokens(28.80, 96_000_000) == pytest.approx(0.30, abs=1e-12)


@pytest.mark.parametrize(
    ("cost", "tokens", "expected"), [(None, 5, None), (1.0, None, None), (1.0, 0, None), (0.0, 5, 0.0)]
)
def test_a_million_tokens_without_figures(cost, tokens, expected):
    assert cost_per_million_tokens(cost, tokens) == expected


def test_a_negative_cost_is_refused():
    with pytest.raises(ValueError, match=r"^a cost of -1.0 USD for 5 tokens$"):
        cost_per_million_tokens(-1.0, 5)


def test_phases():
    assert phase_costs({"forward": 1800, "evaluation": 900}, 4.0) == {"forward": 2.0, "evaluation": 1.0}
    assert phase_costs({"forward": 1800}, 4.0, 2) == {"forward": 4.0}
    assert phase_costs({"forward": 1800}, 0.0) == {"forward": 0.0}
    assert phase_costs({"forward": 1800}, None) is None
