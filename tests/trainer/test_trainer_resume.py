"""Stopped at any checkpoint and started again, a run takes the steps of the uninterrupted one."""

from __future__ import annotations

import pytest
import torch
from tiny_training import METHODS, causal_trainer, losses, trained_weights
from transformers import TrainerCallback

from hf_efficient.run_dir.reading import read_steps
from hf_efficient.trainer import EfficientTrainer

RUN = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_resume_from_any_checkpoint(tiny_dir, tmp_path, method):
    whole = causal_trainer(EfficientTrainer, tiny_dir, tmp_path / "whole", method, **RUN)
    whole.train()
    expected = trained_weights(whole)

    for step in (2, 4):
        out = tmp_path / f"stopped-{step}"
        stopped = causal_trainer(EfficientTrainer, tiny_dir, out, method, callbacks=[StopAt(step)], **RUN)
        stopped.train()
        torch.rand(7)  # another process would have another state
        resumed = causal_trainer(EfficientTrainer, tiny_dir, out, method, **RUN)
        resumed.train(resume_from_checkpoint=True)

        assert losses(stopped) == losses(whole)[:step]
        assert losses(resumed) == losses(whole)
        for name, weight in trained_weights(resumed).items():
            assert torch.equal(weight, expected[name]), name
        recorded = [(r.segment, r.step, r.loss) for r in read_steps(out / "efficiency" / "steps.jsonl")]
        assert recorded == [
            (0 if number <= step else 1, number, loss) for number, loss in enumerate(losses(whole), start=1)
        ]


@pytest.mark.slow
def test_resume_across_evaluations(tiny_dir, tmp_path):
    """With evaluations before, between and after, from the checkpoint in the middle of the second epoch."""
    run = {**RUN, "max_steps": 8, "save_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    whole = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "lora", eval_rows=4, **run)
    whole.train()
    resumed = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "lora", eval_rows=4, **run)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert losses(resumed) == losses(whole)
    steps = [(record.segment, record.step) for record in read_steps(tmp_path / "efficiency" / "steps.jsonl")]
    assert steps == [(0, n) for n in range(1, 9)] + [(1, n) for n in range(5, 9)]
