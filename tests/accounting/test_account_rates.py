"""Rates of a series, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.accounting.series import padding_share, per_step, tokens_per_second
from hf_efficient.records.series import StepSeries


@pytest.fixture
def steps():
    """Three buckets of 4, 4 and 1 steps; the last does not know its tokens."""
    empty = {each.name: [] for each in dataclasses.fields(StepSeries)} | {"phase_seconds": {}, "device_seconds": {}}
    return StepSeries(
        **empty
        | {
            "segment": [0, 0, 0],
            "steps": [4, 4, 1],
            "step_seconds_mean": [0.5, 0.0, 2.0],
            "processed_tokens": [1000, 0, None],
            "non_padding_tokens": [800, 10, None],
        }
    )


def test_rates_by_hand(steps):
    assert tokens_per_second(steps) == [400.0, None, None]  # 800 / (4 * 0.5); no time; no tokens
    assert padding_share(steps) == [pytest.approx(0.2), None, None]
    assert per_step([2.0, None, 3.0], steps) == [0.5, None, 3.0]
