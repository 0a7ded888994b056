"""A training that stops, at a checkpoint or when it is asked to, and goes on with the steps of an unbroken one."""

import json
import shutil

import pytest
import tiny_training
import torch
from tiny_training import METHODS, every, losses, records, train_causal, trained_weights
from transformers import Trainer, TrainerCallback

from hf_efficient.callbacks.stop import StopWhenAsked
from hf_efficient.recording.stop import EndedBySignal, StopRequest
from hf_efficient.run_dir.checkpoints import fault_of
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


class Asks(TrainerCallback):
    """In the middle of a step, or of the evaluation after it."""

    def __init__(self, request, step, in_evaluation):
        self.request, self.step, self.in_evaluation, self.batches = request, step, in_evaluation, 0

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step and not self.in_evaluation:
            assert self.request.heard
            self.request.asked = True

    def on_prediction_step(self, args, state, control, **kwargs):
        self.batches += 1
        self.request.asked |= self.in_evaluation and state.global_step == self.step


@pytest.fixture
def training(tmp_path, tiny_dir):
    def train(name, *, ask_at=None, in_evaluation=False, resume=None, **changes):
        request = StopRequest()
        stop = StopWhenAsked(request)
        settings = {"max_steps": 6, **changes}
        train.asks = Asks(request, ask_at, in_evaluation)
        trainer = tiny_training.causal_trainer(
            EfficientTrainer, tiny_dir, tmp_path / name, callbacks=[train.asks, stop], **settings
        )
        trainer.train(resume_from_checkpoint=resume)
        assert not request.heard
        losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
        return stop.stopped_after, losses, sorted(path.name for path in (tmp_path / name).glob("checkpoint-*"))

    return train


@pytest.mark.slow
def test_the_step_under_way_is_the_last_one_and_the_run_goes_on_as_if_nothing_had_been(training, tmp_path):
    whole = training("whole")
    assert (whole[0], len(whole[1]), whole[2]) == (None, 6, [])
    stopped, losses, checkpoints = training("parts", ask_at=3)
    assert (stopped, losses, checkpoints) == (3, whole[1][:3], ["checkpoint-3"])
    state = json.loads((tmp_path / "parts/checkpoint-3/trainer_state.json").read_text())
    assert state["stateful_callbacks"]["TrainerControl"]["args"]["should_training_stop"] is False
    assert training("parts", resume=str(tmp_path / "parts/checkpoint-3"))[1] == whole[1]


def test_no_evaluation_is_made_first(training, tmp_path):
    changes = {**every(evaluate=2), "eval_rows": 4}
    stopped, _, checkpoints = training("out", ask_at=4, **changes)
    assert (stopped, checkpoints) == (4, ["checkpoint-4"])
    state = json.loads((tmp_path / "out/checkpoint-4/trainer_state.json").read_text())
    assert [one["step"] for one in state["log_history"] if "eval_loss" in one] == [2]


@pytest.mark.parametrize("step", [4, 6])
def test_an_evaluation_is_cut_short_and_the_training_before_it_is_saved(training, tmp_path, step):
    changes = {**every(evaluate=2), "eval_rows": 6, "per_device_eval_batch_size": 2}
    whole = training("whole", **changes)
    stopped, losses, saved = training("out", ask_at=step, in_evaluation=True, metric_for_best_model="loss", **changes)
    assert (stopped, losses, saved) == (None if step == 6 else 4, whole[1][:step], [f"checkpoint-{step}"])
    assert training.asks.batches == 3 * (step // 2 - 1) + 1
    checkpoint = tmp_path / f"out/checkpoint-{step}"
    assert fault_of(checkpoint, hashes=True) is None
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert [one["step"] for one in state["log_history"] if "eval_loss" in one] == [2, 4][: step // 2 - 1]
    if step < 6:
        assert training("out", resume=str(checkpoint), **changes)[1] == whole[1]


def test_asked_in_the_evaluation_before_the_first_step_it_ends_at_once(training):
    changes = {**every(evaluate=2), "eval_rows": 4, "eval_on_start": True}
    with pytest.raises(EndedBySignal, match="SIGTERM"):
        training("out", ask_at=0, in_evaluation=True, **changes)
    assert training.asks.batches == 1


def test_asked_in_the_last_step_the_run_is_done(training):
    assert training("out", ask_at=6)[0] is None


def test_a_plain_trainer_resumes_from_ours(tiny_dir, tmp_path):
    limited = {**every(save=2), "save_total_limit": 1, "lr_scheduler_type": "constant"}
    whole = train_causal(EfficientTrainer, tiny_dir, tmp_path, "lora", max_steps=3, **limited)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
    assert fault_of(tmp_path / "checkpoint-3", hashes=True) is None
    shutil.rmtree(tmp_path / "checkpoint-3")
    train_causal(EfficientTrainer, tiny_dir, tmp_path, "lora", max_steps=2, **limited)
    plain = train_causal(Trainer, tiny_dir, tmp_path, "lora", max_steps=3, resume=True, lr_scheduler_type="constant")
    assert losses(plain) == losses(whole)
