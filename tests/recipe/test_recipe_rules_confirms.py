from __future__ import annotations

import pytest

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"
SETUP = "setup: {model: m, train.save_steps: '50'}"
ASKED = f"efficiency.confirms={{rule: saves_cost, predicted_saving: 0.4, seconds_per_token: 0.01, {SETUP}}}"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            [ASKED, "efficiency.record_steps=false"],
            "efficiency.confirms: is set, but `efficiency.record_steps: false` keeps no record that it could be told "
            "by. Remove it, or the false.",
        ),
        (["efficiency.confirms={run: out}"], "efficiency.confirms.rule"),
        (["efficiency.confirms={rule: a, predicted_saving: 40}"], "efficiency.confirms.predicted_saving: "),
        (["efficiency.confirms={rule: a, predicted_savings: 0.4}"], "Did you mean `predicted_saving`?"),
        (["efficiency.confirms={rule: a, setup: {processes: 2}}"], "efficiency.confirms.setup.processes"),
    ],
)
def test_a_prediction_that_could_not_be_tested(problems, flags, said):
    (found,) = problems(HEAD, *flags)
    assert said in found


@pytest.mark.parametrize("flag", [ASKED, "efficiency.confirms=null"])
def test_a_prediction(problems, flag):
    assert problems(HEAD, flag) == []
