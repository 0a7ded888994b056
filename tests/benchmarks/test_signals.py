"""Signals and the stop file, in every phase of a run of one process or two: a checkpoint, and the end."""

import pytest
from parity import make_inputs
from signals import ASKED, ask
from signals_process import AFTER, BEFORE, PHASES

pytestmark = pytest.mark.slow

EVERY = (BEFORE, *PHASES, *AFTER)
TURNS = [(ASKED[place % 5], phase, 1 + place % 2) for place, phase in enumerate(EVERY)]
TURNS += [(ASKED[(place + 2) % 5], phase, 2 - place % 2) for place, phase in enumerate(EVERY)]
"""Every signal and the stop file with one process and with two, and so every phase."""


def test_the_turns_hold_every_pair():
    assert {(asked, processes) for asked, _, processes in TURNS} == {(one, n) for one in ASKED for n in (1, 2)}
    assert {(phase, processes) for _, phase, processes in TURNS} == {(one, n) for one in EVERY for n in (1, 2)}


@pytest.mark.parametrize(("asked", "phase", "processes"), TURNS)
def test_it_saves_and_ends(tmp_path, asked, phase, processes):
    make_inputs(tmp_path)
    end = ask(asked, phase, processes, tmp_path)
    assert "Traceback" not in end.said
    if phase == BEFORE:  # nothing is trained yet
        assert (end.code, end.saved) == (130 if asked == "SIGINT" else 143, [])
        assert "There is no whole checkpoint yet: --resume starts from the first step." in end.said
    else:
        assert end.has_saved, end.said
        why = "the file" if asked == "stop" else asked
        assert f"stopped by {why} " in end.said
