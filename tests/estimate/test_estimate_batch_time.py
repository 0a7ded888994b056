"""The time of a micro-batch over its tokens."""

from __future__ import annotations

import numpy as np
import pytest

from hf_efficient.estimate.batch_time import batch_time

TOKENS = np.array([100.0, 200.0, 300.0, 400.0] * 5)


def test_a_line_is_found_exactly():
    found = batch_time(0.05 + 0.0002 * TOKENS, TOKENS)
    assert found.fixed_seconds == pytest.approx(0.05)
    assert found.token_seconds == pytest.approx(0.0002)
    assert found.fit == pytest.approx(1.0)


def test_a_few_late_batches_do_not_move_it():
    seconds = 0.05 + 0.0002 * TOKENS
    seconds[[3, 11]] += 2.0
    found = batch_time(seconds, TOKENS)
    assert found.fixed_seconds == pytest.approx(0.05, rel=0.02)
    assert found.token_seconds == pytest.approx(0.0002, rel=0.02)


def test_unknown_batches_are_left_out():
    tokens = TOKENS.copy()
    tokens[0] = np.nan
    assert batch_time(0.05 + 0.0002 * tokens, tokens).fixed_seconds == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [
        (0.05 + 0.0002 * TOKENS[:7], TOKENS[:7]),
        (np.full(20, 0.1), np.full(20, 100.0)),
        (1.0 - 0.0002 * TOKENS, TOKENS),
        (0.0002 * TOKENS - 0.01, TOKENS),
    ],
    ids=["too few", "of one length", "falling", "below nothing"],
)
def test_what_is_no_line_is_not_told(seconds, tokens):
    assert batch_time(seconds, tokens) is None
