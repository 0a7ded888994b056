"""Callbacks, methods of the user's own, and time that nobody is known to take."""

import pytest

from hf_efficient.diagnosis.rules.pauses import logging_cost, own_code
from tests.diagnosis.made import case_in, judged, step

PLAIN = {"forward": 0.4, "backward": 0.5}


def held_case(folder, phases, held, unattributed=0.0, **facts):
    steps = [step(number, phases={**PLAIN, **phases}, held_seconds=held) for number in range(1, 11)]
    for one in steps:
        one["wall_seconds"] += unattributed
    return case_in(folder, steps, facts=facts)


def test_a_callback_that_holds_the_bookkeeping_is_named(tmp_path):
    found = own_code(held_case(tmp_path, {"bookkeeping": 0.1}, {"bookkeeping/Upload.on_step_end": 0.08}))
    assert found.title == "8% of the training loop is spent in Upload.on_step_end, 80.0 ms a step"
    judged(found, rule="own_code", confidence="measured", cost=1.0, saves=0.72, but="it sees one step in ten")
    assert ("Upload.on_step_end, in bookkeeping", 0.8) in [(one.what, one.value) for one in found.evidence]


def test_an_instrument_of_ours_is_not_the_users_code(tmp_path):
    found = own_code(held_case(tmp_path, {"bookkeeping": 0.5}, {"bookkeeping/TorchTraceCallback.on_step_end": 0.45}))
    assert "is spent in the instrument profile.trace, 450 ms a step" in found.title
    judged(found, cost=5.0, saves=4.5)
    (remedy,) = found.remedies
    assert remedy.what.startswith("leave profile.trace out of runs")


def test_below_a_tenth_is_nothing(tmp_path):
    assert own_code(held_case(tmp_path, {"bookkeeping": 0.09}, {"bookkeeping/Upload.on_step_end": 0.09})) is None


def test_callbacks_of_other_phases_and_unattributed_time_add_up(tmp_path):
    held = {"optimizer/Norms.on_optimizer_step": 0.05, "unattributed/Mine.training_step": 0.05}
    found = own_code(held_case(tmp_path, {"optimizer": 0.05}, held, unattributed=0.05))
    judged(found, cost=1.0)
    assert ["Norms.on_optimizer_step" in one.what for one in found.remedies] == [True, False]
    assert "Mine.training_step" in found.remedies[1].what


def test_time_that_nobody_holds_asks_for_a_profile(tmp_path):
    found = own_code(held_case(tmp_path, {"bookkeeping": 0.05}, None, unattributed=0.1))
    assert found.title == "14.3% of the training loop is bookkeeping, callbacks and unattributed time"
    assert "profile.python" in found.remedies[0].what


@pytest.mark.parametrize(("name", "remedies"), [("Tracker.on_log", 2), ("Mine.compute_loss", 1)])
def test_what_logs_slowly_is_the_logs_finding(tmp_path, name, remedies):
    case = held_case(tmp_path, {"logging": 0.3}, {f"logging/{name}": 0.29})
    assert own_code(case) is None
    found = logging_cost(case)
    assert found.evidence[-1].what == f"{name}, in logging"
    assert len(found.remedies) == remedies
