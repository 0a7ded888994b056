from collections import Counter

from stragglers import CASES, CONTROLS, PHASES

from hf_efficient.records.steps import STEP_PHASES


def test_every_phase_is_slowed_on_either_rank_by_sleep_and_by_work_and_in_both_models():
    assert Counter(case.slowed for case in CASES) == dict.fromkeys(("data", "forward", "backward", "save"), 3)
    for slowed in PHASES:
        held = [case for case in CASES if case.slowed == slowed]
        assert {case.rank for case in held} == {0, 1}
        assert {case.how for case in held} == {"sleep", "work"}
        assert {case.model for case in held} == {"small", "larger"}
    assert set(PHASES.values()) < set(STEP_PHASES)


def test_each_is_held_against_a_healthy_run_of_the_same_kind():
    controls = {case.name: case for case in CONTROLS}
    assert len({case.name for case in (*CASES, *CONTROLS)}) == 16
    for case in CASES:
        healthy = controls[case.control]
        assert (healthy.slowed, healthy.model, healthy.saves) == ("", case.model, case.slowed == "save")
