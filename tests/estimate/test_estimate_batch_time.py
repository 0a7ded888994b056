"""The line of a micro-batch's time over its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.estimate.throughput import batch_time

TOKENS = np.tile([90.0, 110.0], 13)


def test_a_line_is_found_though_the_tokens_differ_by_a_tenth():
    found = batch_time(0.5 + 0.01 * TOKENS, TOKENS)
    assert found.fixed_seconds == pytest.approx(0.5)
    assert found.token_seconds == pytest.approx(0.01)


def test_an_intercept_that_is_lost_in_noise_is_none():
    noise = np.tile([1.3, 1.3, 0.7, 0.7], 7)[:26]  # a third of the time: 0.44 / (10 * 5.1) * 100 of it as error
    assert batch_time((0.5 + 0.01 * TOKENS) * noise, TOKENS) is None


def test_too_few_equal_or_falling_ones_are_no_line():
    assert batch_time(np.ones(7), TOKENS[:7]) is None
    assert batch_time(np.ones(26), np.full(26, 100.0)) is None
    assert batch_time(3.0 - 0.01 * TOKENS, TOKENS) is None
