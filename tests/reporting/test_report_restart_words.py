from __future__ import annotations

from hf_efficient.records.account import RestartAccount
from hf_efficient.reporting.run_rows import restart_words


def test_words():
    assert restart_words(
        [
            RestartAccount(1, 5, 3, 2, 20.0, 80.0, 0.1),
            RestartAccount(2, 5, None, 0, 0.0, 30.0, None),
            RestartAccount(3, 3, 0, 3, 9.0, 12.0, None),
            RestartAccount(4, 8, 8, 0, 0.0, 12.0, None),
        ]
    ) == [
        "start 2 on from step 3, 2 steps done again: 1 min 20 s until it trained and 20.0 s of lost steps, $0.10",
        "start 3 never came to train: 30.0 s",
        "start 4 from the first step again, 3 steps done again: 12.0 s until it trained and 9.0 s of lost steps",
        "start 5 on from step 8: 12.0 s until it trained",
    ]
