"""How often a run evaluates and saves, by hand and by transformers' own callback."""

from __future__ import annotations

import pytest
from transformers import DefaultFlowCallback, TrainerControl, TrainerState
from trl import SFTConfig

from hf_efficient.planning.batches import BatchShapes
from hf_efficient.planning.run_data import evaluates_by_epoch, evaluations_of, saves_by_epoch, saves_of

TEN = BatchShapes(1, 1.0, steps=10, epoch_steps=4, step_content=1.0)
"""Ten steps, four an epoch: epochs end after the steps 4, 8 and 10."""


@pytest.fixture
def arguments(tmp_path):
    def build(**fields):
        return SFTConfig(**{"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "report_to": [], **fields})

    return build


@pytest.mark.parametrize(
    ("fields", "at_end", "expected"),
    [
        ({}, False, 0),
        ({}, True, 1),
        ({"eval_on_start": True}, False, 1),
        ({"eval_strategy": "steps", "eval_steps": 3}, False, 4),  # 3, 6, 9 and the last step
        ({"eval_strategy": "steps", "eval_steps": 3}, True, 4),
        ({"eval_strategy": "steps", "eval_steps": 5}, True, 2),  # the one after step 10 is the last
        ({"eval_strategy": "steps", "eval_steps": 0.25}, False, 4),  # every 3 steps
        ({"eval_strategy": "steps", "logging_steps": 4}, False, 3),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}, False, 3),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 11}, False, 0),
        ({"eval_strategy": "epoch"}, True, 3),
        ({"eval_strategy": "epoch", "eval_delay": 1.5}, True, 2),
        ({"eval_strategy": "steps", "eval_steps": 5, "save_steps": 5, "load_best_model_at_end": True}, True, 3),
    ],
)
def test_how_often_a_run_evaluates(arguments, fields, at_end, expected):
    assert evaluations_of(arguments(**fields), TEN, at_end=at_end) == expected


SAVING = [
    ({"save_strategy": "no"}, 0),
    ({}, 1),  # every 500 steps, and after the last one
    ({"save_steps": 4}, 3),  # 4, 8, 10
    ({"save_steps": 5}, 2),
    ({"save_steps": 0.25}, 4),  # every 3 steps, and after the last one
    ({"save_strategy": "epoch"}, 3),
]


@pytest.mark.parametrize(("fields", "expected"), SAVING)
def test_how_often_a_run_saves(arguments, fields, expected):
    assert saves_of(arguments(**fields), TEN) == expected


@pytest.mark.parametrize(
    "fields", [*(fields for fields, _ in SAVING), {"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 4}]
)
def test_as_the_callback_of_transformers_decides(arguments, fields):
    args, flow, control = arguments(**fields), DefaultFlowCallback(), TrainerControl()
    state, evaluations, saves = TrainerState(max_steps=TEN.steps), 0, 0
    state.compute_steps(args, TEN.steps)
    for step in range(1, TEN.steps + 1):
        state.global_step, state.epoch = step, step / TEN.epoch_steps
        asked = [flow.on_step_end]
        if step % TEN.epoch_steps == 0 or step == TEN.steps:
            asked.append(flow.on_epoch_end)
        for ask in asked:
            control.should_evaluate = control.should_save = False
            ask(args, state, control)
            evaluations, saves = evaluations + control.should_evaluate, saves + control.should_save
    assert (evaluations_of(args, TEN, at_end=False), saves_of(args, TEN)) == (evaluations, saves)


def test_the_best_is_saved_at_most_as_often_as_it_is_looked_for(arguments):
    """After 3, 6, 9 and 10; what is evaluated before the first step is not saved."""
    best = {"save_strategy": "best", "metric_for_best_model": "loss", "eval_on_start": True}
    assert saves_of(arguments(**best, eval_strategy="steps", eval_steps=3), TEN) == 4
    assert saves_of(arguments(**best, eval_strategy="epoch"), TEN) == 3


def test_what_the_length_of_an_epoch_decides(arguments):
    best = {"save_strategy": "best", "metric_for_best_model": "loss"}
    steps = arguments(eval_strategy="steps", eval_steps=0.5, **best)
    assert (evaluates_by_epoch(steps), saves_by_epoch(steps)) == (False, False)
    epoch = arguments(eval_strategy="epoch")
    assert (evaluates_by_epoch(epoch), saves_by_epoch(epoch)) == (True, False)
    assert saves_by_epoch(arguments(eval_strategy="epoch", **best))
    assert saves_by_epoch(arguments(save_strategy="epoch"))
