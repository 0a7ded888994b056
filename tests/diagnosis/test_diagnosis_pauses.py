from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.pauses import distance


@pytest.mark.parametrize(
    ("pause", "step", "allowed", "steps"),
    [
        (6.0, 0.6, 0.1, 90),  # 6 * 0.9 / 0.06
        (6.0, 0.5, 0.1, 110),  # 108, rounded up to two digits
        (0.001, 10.0, 0.5, 1),
    ],
)
def test_after_how_many_steps_a_pause_takes_a_share(pause, step, allowed, steps):
    assert distance(pause, step, allowed) == steps
