"""Which changes count, and what they give of what was predicted, by hand."""

import pytest
from tune_predictions import CASES, came, summary

from hf_efficient.records.tuning import Gain, TriedChange, Tuning
from hf_efficient.trials.knobs import KNOBS


def tuning(*tried):
    return Tuning(2, "0", "r", "tokens_per_second", "", {}, {}, [], list(tried), {}, 60.0)


def change(knob, predicted, achieved, verdict="accepted", spread=0.1):
    low, high = (None, None) if spread is None else (achieved - spread, achieved + spread)
    return TriedChange(knob, "", {}, verdict, predicted=predicted, gain=Gain(achieved, low, high, ""))


def test_only_accepted_measured_and_predicted_changes_count():
    found = tuning(
        change("packing", 2.0, 1.6),
        change("cadence", 1.3, 1.3, spread=None),
        change("precision", None, 2.0),
        change("loss", 1.5, 1.1, "undecided"),
    )
    (one,) = came("a", found)
    # half of the time should go, and 3/8 of it went
    assert (one.knob, one.of_predicted) == ("packing", pytest.approx(0.75))


def test_the_summary_is_of_the_median():
    counted = [one for case in "abcd" for one in came(case, tuning(change("x", 2.0, 1.6), change("y", 2.0, 2.0)))]
    found = summary([*counted, *counted])
    assert found["changes"] == 16
    assert found["median_of_predicted"] == pytest.approx(0.875)
    assert found["is_met"]
    assert not summary(counted)["is_met"]  # eight are too few
    assert summary([]) == {"changes": 0}


def test_planted_knobs_exist():
    assert {knob for case in CASES.values() for knob in case.knobs} <= {knob.name for knob in KNOBS}
