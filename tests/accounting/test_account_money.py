"""What runs cost, to the cent, by hand."""

from __future__ import annotations

import math

import pytest
from test_account_build import end, lines, process, span, step, train
from test_account_energy import facts

from hf_efficient.accounting.account import account_of
from hf_efficient.records.amounts import MoneyAccount


def price(usd, source="by hand", estimated=False, **more):
    return {"price_usd_per_hour": usd, "source": source, "estimated": estimated, **more}


@pytest.fixture
def run(tmp_path):
    """An hour: 12 minutes of imports, 36 of a step with 18 of evaluation and 9 of checkpointing, 12 of nobody's."""
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=720.0), train(0, 720.0), end(3600.0))
    lines(
        tmp_path / "steps.jsonl",
        step(1, 0.0, 2160.0, forward=540.0, evaluation=1080.0, checkpointing=540.0, tokens=(3_000_000, 2_000_000, 1)),
    )
    return tmp_path


def test_money_by_hand(run):
    lines(run / "spans.jsonl", facts(price=price(2.5)))
    assert account_of(run).money == MoneyAccount(
        cost_usd=2.5,
        usd_per_million_non_padding_tokens=1.25,
        phase_usd={
            "imports": 0.5,
            "forward": 0.375,
            "evaluation": 0.75,
            "checkpointing": 0.375,
            "unattributed": 0.5,
        },
        price_usd_per_hour=2.5,
        price_source="by hand",
        estimated=False,
    )


def test_an_estimate_says_so_and_a_free_machine_costs_nothing(run):
    lines(run / "spans.jsonl", facts(price=price(2.5, "median", estimated=True)))
    assert account_of(run).money.estimated
    lines(run / "spans.jsonl", facts(price=price(0.0)))
    found = account_of(run).money
    assert (found.cost_usd, found.usd_per_million_non_padding_tokens, found.estimated) == (0.0, 0.0, False)
    assert set(found.phase_usd.values()) == {0.0}


def test_each_process_is_paid_at_its_own_price(run):
    """3600 s at 2.50, 1800 s at 4: 2.50 + 2.00; the phases sum up to it."""
    lines(run / "spans.jsonl", facts(price=price(2.5)))
    lines(
        run / "spans.jsonl",
        process(1),
        facts(1, price=price(4.0, "another")),
        span(0.0, 1, imports=900.0),
        end(1800.0, 1),
    )
    found = account_of(run).money
    assert found.cost_usd == 4.5
    assert found.phase_usd["imports"] == 1.5
    assert round(math.fsum(found.phase_usd.values()), 2) == 4.5
    assert (found.price_usd_per_hour, found.price_source) == (4.0, "another")
    assert (found.lowest_price_usd_per_hour, found.highest_price_usd_per_hour) == (2.5, 4.0)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_process_that_died_before_it_stated_a_price_is_paid_like_its_neighbour(tmp_path, silent):
    """Half an hour each at 1, 2 and 4; the silent one at the price of the next, the last at that of the one before."""
    stated = [1.0, 2.0, 4.0]
    for number, usd in enumerate(stated):
        lines(tmp_path / "spans.jsonl", process(number), end(1800.0, number))
        if number != silent:
            lines(tmp_path / "spans.jsonl", facts(number, price=price(usd)))
    assert account_of(tmp_path).money.cost_usd == [4.0, 4.5, 2.5][silent]


def test_no_price_is_no_cost_and_says_why(run):
    found = account_of(run)
    assert found.money == MoneyAccount()
    assert ("cost", "the records state no price") in [(gap.what, gap.why) for gap in found.not_measured]
    lines(run / "spans.jsonl", facts(price=price(None, None, reason="nobody knows; set it")))
    found = account_of(run)
    assert found.money == MoneyAccount()
    assert ("cost", "nobody knows; set it") in [(gap.what, gap.why) for gap in found.not_measured]


def test_tokens_that_are_not_known_have_no_price(run):
    lines(run / "spans.jsonl", facts(price=price(2.5)))
    lines(run / "steps.jsonl", step(2, 2160.0, 1.0, tokens=(1, None, 1)))
    assert account_of(run).money.usd_per_million_non_padding_tokens is None


def test_cents_of_phases_sum_up(tmp_path):
    """A run of odd numbers: what its phases cost is what it cost, to a millionth of a cent."""
    phases = {"imports": 7.13, "model_load": 3.0001, "trainer_setup": 0.337}
    lines(tmp_path / "spans.jsonl", process(), facts(price=price(2.49)), span(0.0, **phases), end(613.77))
    found = account_of(tmp_path).money
    assert found.cost_usd == pytest.approx(613.77 / 3600 * 2.49, rel=1e-12)
    assert math.fsum(found.phase_usd.values()) == pytest.approx(found.cost_usd, abs=1e-8)
