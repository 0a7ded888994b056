from __future__ import annotations

import pytest

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["efficiency.budget={}"], "efficiency.budget: has no limit. Write usd, hours or kwh, or remove it."),
        (
            ["efficiency.budget={usd: 2}", "efficiency.record_steps=false"],
            "efficiency.budget: is set, but `efficiency.record_steps: false` records nothing that could be counted. "
            "Remove it, or the false.",
        ),
        (["efficiency.budget={usd: 0}"], "efficiency.budget.usd: "),
        (["efficiency.budget={hours: -1}"], "efficiency.budget.hours: "),
        (["efficiency.budget={kwh: much}"], "efficiency.budget.kwh: "),
        (["efficiency.budget={eur: 1}"], "efficiency.budget.eur: "),
    ],
)
def test_a_budget_that_could_not_be_kept(problems, flags, said):
    (found,) = problems(HEAD, *flags)
    assert said in found


@pytest.mark.parametrize("flag", ["efficiency.budget={usd: 2, hours: 1.5, kwh: 0.3}", "efficiency.budget=null"])
def test_a_budget(problems, flag):
    assert problems(HEAD, flag) == []
