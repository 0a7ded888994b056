"""What communication hides behind, by hand."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.communication import overlap_share, overlap_window_seconds
from hf_efficient.estimate.sharding import Sharding


@pytest.mark.parametrize(
    ("seconds", "window", "messages", "share"),
    [
        (2.0, 1.2, 10, 0.6),
        (2.0, 5.0, 10, 0.9),  # the last of ten has nothing beside it
        (2.0, 5.0, 1, 0.0),
        (2.0, 0.0, 10, 0.0),
        (0.0, 1.0, 0, 0.0),
    ],
)
def test_the_share_that_is_hidden(seconds, window, messages, share):
    assert overlap_share(seconds, window, messages) == pytest.approx(share)


def test_communication_in_no_message_is_refused():
    with pytest.raises(ValueError, match=r"2\.0 s of communication in 0 messages"):
        overlap_share(2.0, 1.0, 0)


@pytest.mark.parametrize(
    ("strategy", "settings", "window"),
    [
        ("ddp", {"micro_batches": 4}, 1.0),  # two thirds of 6 / 4
        ("zero2", {"micro_batches": 4}, 0.0),
        ("zero1", {"overlap_comm": True, "micro_batches": 4}, 1.0),  # as ddp
        ("zero2", {"overlap_comm": True, "micro_batches": 4}, 4.0),  # two thirds of all four
        ("zero1", {"micro_batches": 4}, 0.0),
        ("zero3", {}, 6.0),
        ("fsdp2", {}, 6.0),
    ],
)
def test_what_it_may_run_beside(strategy, settings, window):
    assert overlap_window_seconds(Sharding(strategy, 8, **settings), 6.0) == pytest.approx(window)
