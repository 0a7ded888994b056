from __future__ import annotations

import pytest

from hf_efficient.callbacks.progress_text import Progress, progress_text, room_for_figures

ALL = Progress(
    seconds_left=9065.0, tokens_per_second=12_345.6, step_seconds=0.5, mfu=0.314, cost_usd=1.2, total_usd=4.8
)


@pytest.mark.parametrize(
    ("room", "text"),
    [
        (None, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80"),
        (51, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80"),
        (49, "2:31:05 left, 12.3k tok/s, 31% MFU, $1.20"),
        (40, "2:31:05 left, 12.3k tok/s, $1.20"),
        (30, "2:31:05 left, $1.20"),
        (15, "2:31:05 left"),
        (11, ""),
    ],
)
def test_as_much_as_there_is_room_for(room, text):
    assert progress_text(ALL, room) == text


def test_what_is_not_known_is_left_out():
    assert progress_text(Progress()) == ""
    assert progress_text(Progress(seconds_left=42.4, step_seconds=0.0312)) == "0:42 left, 31.2 ms a step"
    assert progress_text(Progress(tokens_per_second=99.0, cost_usd=0.5)) == "99 tok/s, $0.50"


def test_a_lower_bound_says_so():
    text = progress_text(Progress(seconds_left=125, lower_bound=True, cost_usd=0.5, total_usd=0.75))
    assert text == ">2:05 left, $0.50 of >$0.75"


def test_the_room_beside_a_bar_of_eight_characters():
    # "100%|" + 8 + "| 46/120 [" + "12:05" + ", " + figures + "]", and one for tqdm's "00:05"
    assert room_for_figures(80, 46, 120, 725.0) == 80 - (5 + 8 + 10 + 5 + 2 + 1 + 1)
    assert room_for_figures(20, 46, 120, 725.0) == 0
    assert room_for_figures(None, 46, 120, 725.0) is None
