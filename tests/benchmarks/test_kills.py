"""Six kills of one process, each in another place: it comes back by itself, and nothing is lost."""

import pytest
from kills import STRATEGIES, TOLERANCES, planned_kills, run_kills
from kills_process import PLACES
from parity import make_inputs


def test_the_kills_take_turns():
    kills, steps = planned_kills(2 * len(PLACES), 2, seed=0)
    assert [place for place, _, _ in kills] == [*PLACES, *PLACES]
    assert steps > max(step for _, step, _ in kills)
    assert {rank for _, _, rank in kills} == {0, 1}
    assert set(TOLERANCES) == set(STRATEGIES)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["none", "background"])
def test_six_kills_lose_nothing(tmp_path, strategy):
    make_inputs(tmp_path)
    outcome = run_kills(strategy, tmp_path, 6)
    assert outcome.ended_with == 0, outcome.said
    assert [kill.place for kill in outcome.kills] == list(PLACES[:6])
    assert (outcome.starts, outcome.worst) == (6, 0.0)
    assert all(kill.newest > 0 for kill in outcome.kills[strategy == "background" :])  # its first save may be under way
    assert outcome.holds
