from __future__ import annotations

from dataclasses import replace

from datasets import Dataset

from hf_efficient.data.build import PreferenceData
from hf_efficient.data.stats import DataStats
from hf_efficient.launch.build import preference_remarks, remarks

PLAIN = DataStats(
    examples=40,
    dropped_overlong=0,
    truncated=0,
    dropped_masked=0,
    masked=0,
    tokens_total=400,
    tokens_loss_bearing=300,
    longest=12,
)


def test_nothing_to_say():
    assert remarks(PLAIN, 64) == []


def test_examples_that_teach_nothing():
    assert remarks(replace(PLAIN, masked=3), 64) == [
        "3 examples have no token that bears loss: they cost time and teach nothing"
    ]
    assert remarks(replace(PLAIN, masked=1), 64) == [
        "1 example has no token that bears loss: it costs time and teaches nothing"
    ]


def test_empty_examples():
    assert remarks(replace(PLAIN, empty=2), 64) == ["2 examples are empty: a blank text, completion or last answer"]
    assert remarks(replace(PLAIN, empty=1), 64) == ["1 example is empty: a blank text, completion or last answer"]


def test_sources_that_contribute_little():
    assert remarks(replace(PLAIN, small_sources={"data.train.0": 9, "data.train.2": 1}), 64) == [
        "data.train.0 contributes only 9 examples",
        "data.train.2 contributes only 1 example",
    ]


def test_preference_pairs():
    nothing = Dataset.from_list([])
    assert preference_remarks(PreferenceData(nothing, None, 0, 0, None, 3), 8) == []
    assert preference_remarks(PreferenceData(nothing, None, 1, 0, {"data.train.1": 2}, 3), 8) == [
        "1 pair is left out: the prompt alone fills train.max_length 8",
        "data.train.1 contributes only 2 examples",
    ]
