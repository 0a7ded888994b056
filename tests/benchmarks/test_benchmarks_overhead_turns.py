import overhead_arms
from overhead_arms import run_turns
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
    monkeypatch.setattr(overhead_arms, "BLOCKS_OF_TURNS", 2)
    (first, second) = overhead_arms._blocks("plain", [(wall * 1000, 500) for wall in (1, 2, 9, 4, 4, 4)])
    assert (first.steps, first.wall_us, first.mean_wall_us, first.cpu_us) == (3, 2.0, 4.0, 0.5)
    assert second.wall_us == second.mean_wall_us == 4.0
    assert [step for step, _ in seen] == [step for step in range(1, 23) for _ in range(2)]
    assert [arm for _, arm in seen[:4]] == ["efficient", "plain", "plain", "efficient"]
    assert {arm: len(found) for arm, found in blocks.items()} == {"plain": 20, "efficient": 20}
    assert {(one.arm, one.steps) for one in blocks["efficient"]} == {("efficient", 1)}
