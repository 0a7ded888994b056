import dataclasses

import overhead_arms
import pytest
from overhead_arms import HandOver, run_turns
from overhead_cases import CASES
from transformers import TrainerCallback


def test_the_arms_take_turns_step_by_step_in_balanced_orders(monkeypatch):
    seen = []
    real = overhead_arms.trainer_of

    def watched(case, arm, model, folder, steps, callbacks):
        class Watch(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                seen.append((state.global_step, arm))

        return real(case, arm, model, folder, steps, [Watch(), *callbacks])

    monkeypatch.setattr(overhead_arms, "trainer_of", watched)
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(overhead_arms.time, "perf_counter_ns", lambda: next(clock))
    monkeypatch.setattr(overhead_arms.time, "process_time_ns", lambda: 0)
    case = CASES["tiny"]
    blocks = run_turns(case, ("plain", "efficient"), case.build(), skip=2, steps=20)
    monkeypatch.undo()
    assert [step for step, _ in seen] == [step for step in range(1, 23) for _ in range(2)]
    assert [arm for _, arm in seen[:4]] == ["efficient", "plain", "plain", "efficient"]
    assert {arm: len(found) for arm, found in blocks.items()} == {"plain": 20, "efficient": 20}
    assert {(one.arm, one.steps) for one in blocks["efficient"]} == {("efficient", 1)}


def test_a_block_is_a_turn():
    first, second = overhead_arms._blocks("plain", [(1_500, 2_000), (15_500, 3_000)])
    assert (first.wall_us, first.cpu_us, second.wall_us) == (1.5, 2.0, 15.5)
    assert (first.outside_seconds, first.background_cpu_us) == (None, None)


@pytest.mark.parametrize(("skip", "steps"), [(0, 10), (1, 0), (1, 15)])
def test_steps_that_could_not_be_measured_are_refused(skip, steps):
    with pytest.raises(ValueError, match=f"tiny on cpu, skip {skip}, steps {steps}"):
        run_turns(CASES["tiny"], ("plain",), None, skip, steps)


def test_a_gpu_is_refused():
    case = dataclasses.replace(CASES["tiny"], name="gpu", arguments={})
    with pytest.raises(ValueError, match="gpu on cuda"):
        run_turns(case, ("plain",), None, 1, 10)


def test_a_trainer_outside_a_greenlet_says_so():
    with pytest.raises(RuntimeError, match="start it by run_turns"):
        HandOver().on_step_end(None, None, None)
