"""Evaluations, checkpoints and logs that take too much of the loop."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.pauses import evaluations_cost, saves_cost
from tests.diagnosis.made import case_in, judged, settings, step

PLAIN = {"forward": 0.4, "backward": 0.6}


def paused(phase, seconds, every, count=100):
    return [step(n, phases={**PLAIN, **({phase: seconds} if n % every == 0 else {})}) for n in range(1, count + 1)]


def facts(**arguments):
    return {"settings": settings(arguments=arguments)}


def test_evaluations_that_take_a_third_are_found_with_what_rarer_ones_save(tmp_path):
    notes = [{"kind": "evaluation", "step": 10 * n, "seconds": 5.0, "metrics": {}} for n in range(1, 11)]
    case = case_in(
        tmp_path,
        paused("evaluation", 5.0, 10),
        facts=facts(eval_strategy="steps", eval_steps=10),
        notes=notes,
        price_usd_per_hour=7.2,
    )
    found = evaluations_cost(case)
    # 100 s of training and 10 evaluations of 5 s: a third of 150 s.
    judged(found, cost=50, cost_usd=0.1)
    assert found.evidence[0].value == pytest.approx(1 / 3)
    # A twentieth allows 0.05 * 100 / 0.95 / 5 = 1.0526 evaluations in 100 steps: every 95 steps.
    remedy = found.remedies[0]
    assert remedy.overrides == {"train.eval_strategy": "steps", "train.eval_steps": 95}
    assert remedy.gain.seconds == pytest.approx(40)  # one evaluation stays, and the one after the last step
    assert remedy.gain.share == pytest.approx(40 / 150)


def test_checkpoints_every_second_step_are_found(tmp_path):
    stated = facts(save_strategy="steps", save_steps=2, save_only_model=False)
    found = saves_cost(case_in(tmp_path, paused("checkpointing", 2.0, 2), facts=stated))
    judged(found, cost=100, overrides={"train.save_strategy": "steps", "train.save_steps": 65}, saves=96)
    # 0.03 * 100 / 0.97 / 2 = 1.546 checkpoints in 100 steps: every 64.7, so 65 steps.
    assert found.remedies[1].overrides == {"train.save_only_model": True}
