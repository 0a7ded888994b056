"""Stopped at any checkpoint and started again, a run takes the steps of the uninterrupted one."""

from __future__ import annotations

import pytest
import torch
from tiny_training import METHODS, every, losses, records, train_causal, trained_weights
from transformers import TrainerCallback

from hf_efficient.trainer import EfficientTrainer

RUN = {"max_steps": 6, **every(save=2), "gradient_accumulation_steps": 2}


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resume_from_any_checkpoint(tiny_dir, tmp_path, method):
    whole = train_causal(EfficientTrainer, tiny_dir, tmp_path / "whole", method, **RUN)
    expected = trained_weights(whole)

    for step in (2, 4):
        out = tmp_path / f"stopped-{step}"
        stopped = train_causal(EfficientTrainer, tiny_dir, out, method, callbacks=[StopAt(step)], **RUN)
        torch.rand(7)  # another process would have another state
        resumed = train_causal(EfficientTrainer, tiny_dir, out, method, **RUN, resume=True)

        assert losses(stopped) == losses(whole)[:step]
        assert losses(resumed) == losses(whole)
        for name, weight in trained_weights(resumed).items():
            assert torch.equal(weight, expected[name]), name
        recorded = [(r.segment, r.step, r.loss) for r in records(out)]
        assert recorded == [
            (0 if number <= step else 1, number, loss) for number, loss in enumerate(losses(whole), start=1)
        ]


@pytest.mark.slow
def test_resume_across_evaluations(tiny_dir, tmp_path):
    """With evaluations before, between and after, from the checkpoint in the middle of the second epoch."""
    run = {**RUN, "max_steps": 8, "save_steps": 4, **every(evaluate=2), "eval_on_start": True}
    whole = train_causal(EfficientTrainer, tiny_dir, tmp_path, "lora", eval_rows=4, **run)
    resumed = train_causal(
        EfficientTrainer, tiny_dir, tmp_path, "lora", eval_rows=4, **run, resume=str(tmp_path / "checkpoint-4")
    )
    assert losses(resumed) == losses(whole)
    steps = [(record.segment, record.step) for record in records(tmp_path)]
    assert steps == [(0, n) for n in range(1, 9)] + [(1, n) for n in range(5, 9)]
