from __future__ import annotations

import pytest

from hf_efficient.estimate.forecast import Clearance, Limits, Spent, clearance


def test_the_limit_that_comes_first():
    limits, spent = Limits(usd=2.0, hours=1.0), Spent(1800.0, 0.5)
    assert clearance(limits, spent, 1.0) == Clearance("hours", 1800.0)
    assert clearance(limits, spent, 4.0) == Clearance("usd", 1350.0)


def test_energy_at_its_power():
    # 0.4 kWh are left, at 800 W half an hour.
    assert clearance(Limits(kwh=1.0), Spent(60.0, None, 0.6), watts=800.0) == Clearance("kwh", pytest.approx(1800.0))


def test_a_limit_that_has_been_passed():
    assert clearance(Limits(hours=1.0), Spent(3700.0)) == Clearance("hours", pytest.approx(-100.0))
    assert clearance(Limits(usd=1.0), Spent(3700.0, 2.0), None) == Clearance("usd", 0.0)


def test_what_is_not_counted_or_costs_nothing_is_no_limit():
    assert clearance(Limits(usd=1.0), Spent(3700.0, None)) is None
    assert clearance(Limits(usd=1.0), Spent(3700.0, 0.0), 0.0) is None
    assert clearance(Limits(kwh=1.0), Spent(3700.0, None, 0.5), watts=None) is None
    assert clearance(Limits(usd=1.0, hours=2.0), Spent(3600.0, None)) == Clearance("hours", 3600.0)


def test_spent_in_the_unit_of_a_limit():
    spent = Spent(1800.0, 0.5, 0.25)
    assert [spent.of(name) for name in ("usd", "hours", "kwh")] == [0.5, 0.5, 0.25]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_a_positive_number(value):
    with pytest.raises(ValueError, match="write a positive number"):
        Limits(usd=value)
    with pytest.raises(ValueError, match="without a limit"):
        Limits()
