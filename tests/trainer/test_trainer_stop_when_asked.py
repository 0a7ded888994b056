"""A training that is asked to stop: its last step has a checkpoint, from which it goes on bit for bit."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import tiny_training
from tiny_training import every
from transformers import TrainerCallback

from hf_efficient.callbacks.stop import StopWhenAsked
from hf_efficient.recording.stop import EndedBySignal, StopAgreement, StopRequest
from hf_efficient.trainer import EfficientTrainer


class Asks(TrainerCallback):
    """In the middle of a step."""

    def __init__(self, request, step):
        self.request, self.step = request, step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            assert self.request.heard
            self.request.asked = True


@pytest.fixture
def training(tmp_path, tiny_dir):
    def train(name, *, ask_at=None, resume=None, **changes):
        request = StopRequest()
        stop = StopWhenAsked(request, StopAgreement(lambda: request.asked))
        settings = {"max_steps": 6, "logging_steps": 1, "save_strategy": "no", "save_steps": 500, **changes}
        trainer = tiny_training.causal_trainer(
            EfficientTrainer, tiny_dir, tmp_path / name, callbacks=[Asks(request, ask_at), stop], **settings
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


def test_asked_in_the_last_step_the_run_is_done(training):
    assert training("out", ask_at=6)[0] is None


def test_ranks_that_cannot_agree_end_without_a_checkpoint():
    agreement = StopAgreement(lambda: False)
    agreement.failed = True
    with pytest.raises(EndedBySignal):
        StopWhenAsked(StopRequest(), agreement).on_step_end(None, SimpleNamespace(global_step=1), None)
