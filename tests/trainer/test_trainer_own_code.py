"""Overrides in the user's own class, left or right of the mixin, without super(); and callbacks by name."""

import pytest
import torch
from hand_clock import Hand, timeline_of
from tiny_training import assert_same_run, causal_trainer, every, records, train_causal, valid_account
from transformers import Trainer, TrainerCallback

import hf_efficient.recording.timeline as timelines
from hf_efficient.diagnosis.engine import diagnose
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


@pytest.fixture
def hand(monkeypatch):
    """The clock of this process."""
    clock = Hand()
    monkeypatch.setattr(timelines, "_timeline", timeline_of(clock))
    return clock


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Inherits(EfficientTrainerMixin, Trainer):
    compute_loss = OwnLoss.compute_loss


class Right(EfficientTrainerMixin, OwnLoss):
    pass


class Plain:
    compute_loss = OwnLoss.compute_loss


class Left(Plain, EfficientTrainerMixin, Trainer):
    pass


@pytest.mark.parametrize("kind", [Inherits, Right, Left])
def test_a_loss_of_the_users_own_has_its_phase_its_flops_and_its_name(tiny_dir, tmp_path, kind):
    trainer = train_causal(kind, tiny_dir, tmp_path / "a")
    found = valid_account(tmp_path / "a")
    assert all("forward" in record.phase_seconds for record in records(tmp_path / "a"))
    assert found.work.model_flops > 0
    assert found.work.mfu > 0
    assert next(one.phase for one in found.time.held if one.name == "OwnLoss.compute_loss") == "forward"
    assert_same_run(trainer, train_causal(OwnLoss, tiny_dir, tmp_path / "b"))


class Cooperative(EfficientTrainer):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize("kind", [Inherits, Cooperative])
def test_the_flops_of_an_own_loss_are_those_of_the_same_loss_below(tiny_dir, tmp_path, kind):
    for one in (EfficientTrainer, kind):
        train_causal(one, tiny_dir, tmp_path / one.__name__)
    below, own = (valid_account(tmp_path / one.__name__).work for one in (EfficientTrainer, kind))
    assert (own.model_flops, own.hardware_flops) == (below.model_flops, below.hardware_flops)
    assert own.reason is None


class RunsTwice(EfficientTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return (model(**inputs).loss + model(**inputs).loss) / 2


class RunsAPart(EfficientTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model.get_base_model().model(inputs["input_ids"]).last_hidden_state.square().mean()


@pytest.mark.parametrize(("kind", "times"), [(RunsTwice, "2 times"), (RunsAPart, "not at all as a whole")])
def test_a_loss_that_runs_the_model_otherwise_has_no_flops(tiny_dir, tmp_path, kind, times):
    trainer = train_causal(kind, tiny_dir, tmp_path, mixin={"check_gradients": False})
    work = valid_account(tmp_path).work
    assert (work.model_flops, work.mfu) == (None, None)
    assert work.reason.startswith(f"{kind.__name__}.compute_loss: it runs the model {times} for a micro-batch")
    assert not trainer.model._forward_pre_hooks


class SavesSlowly(EfficientTrainer):
    clock = None

    def _save_checkpoint(self, model, trial):
        self.clock.wait(1.5)

    def _prepare_inputs(self, inputs):
        self.clock.wait(0.1)
        return inputs


def test_a_checkpoint_of_the_users_own_is_a_checkpoint(tiny_dir, tmp_path, hand):
    SavesSlowly.clock = hand
    train_causal(SavesSlowly, tiny_dir, tmp_path, max_steps=4, **every(save=2))
    found = valid_account(tmp_path)
    assert found.time.phase_seconds["checkpointing"] == 3.0
    assert [(one.name, one.phase, one.seconds) for one in found.time.held] == [
        ("SavesSlowly._save_checkpoint", "checkpointing", 3.0),
        ("SavesSlowly._prepare_inputs", "host_to_device", 0.4),
    ]
    costs = next(one for one in diagnose(tmp_path).findings if one.rule == "saves_cost")
    assert "SavesSlowly._save_checkpoint, in checkpointing" in [one.what for one in costs.evidence]
    assert any("SavesSlowly._save_checkpoint" in one.what for one in costs.remedies)


class Sleepy(TrainerCallback):
    def __init__(self, hand):
        self.hand = hand

    def on_step_end(self, args, state, control, **kwargs):
        self.hand.wait(0.05)

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.hand.wait(0.01)

    def on_log(self, args, state, control, **kwargs):
        self.hand.wait(0.002)


def test_a_callback_that_sleeps_is_found_by_name(tiny_dir, tmp_path, hand):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=10, callbacks=[Sleepy(hand)])
    found = {(one.name, one.phase): one.seconds for one in valid_account(tmp_path).time.held}
    assert found == pytest.approx(
        {
            ("Sleepy.on_step_end", "bookkeeping"): 0.5,
            ("Sleepy.on_optimizer_step", "optimizer"): 0.1,
            ("Sleepy.on_log", "logging"): 0.02,
        }
    )
    (own,) = [one for one in diagnose(tmp_path).findings if one.rule == "own_code"]
    assert own.title == "80.6% of the training loop is spent in Sleepy.on_step_end, 50.0 ms a step"
    assert own.cost.seconds == pytest.approx(0.6)  # logs are another rule's
    assert ["Sleepy.on_step_end" in one.what for one in own.remedies] == [True]


class Evaluates(TrainerCallback):
    """Runs the trainer inside an event."""

    def __init__(self, hand):
        self.hand, self.trainer = hand, None

    def on_step_end(self, args, state, control, **kwargs):
        self.hand.wait(1)
        self.trainer.evaluate()


class EvaluatesSlowly(EfficientTrainer):
    clock = None

    def evaluate(self, *args, **kwargs):
        self.clock.wait(2)
        return {"eval_loss": torch.tensor(1.0)}

    def training_step(self, model, inputs, *args, **kwargs):
        self.clock.wait(4)
        return super().training_step(model, inputs, *args, **kwargs)


def test_what_a_callback_makes_the_trainer_do_is_not_its_own_time(tiny_dir, tmp_path, hand):
    EvaluatesSlowly.clock, callback = hand, Evaluates(hand)
    trainer = causal_trainer(EvaluatesSlowly, tiny_dir, tmp_path, max_steps=2, callbacks=[callback])
    callback.trainer = trainer
    trainer.train()
    found = valid_account(tmp_path).time
    assert {one.name: (one.phase, one.seconds) for one in found.held} == {
        "EvaluatesSlowly.training_step": ("unattributed", 8.0),
        "EvaluatesSlowly.evaluate": ("evaluation", 4.0),
        "Evaluates.on_step_end": ("bookkeeping", 2.0),
    }
    assert (found.phase_seconds["bookkeeping"], found.phase_seconds["evaluation"]) == (2.0, 4.0)
    assert "EvaluatesSlowly.training_step" in {one.rule: one for one in diagnose(tmp_path).findings}["own_code"].title


class OwnLoader(EfficientTrainer):
    clock = None

    def get_train_dataloader(self):
        self.clock.wait(3)
        return super().get_train_dataloader()


def test_a_loader_of_the_users_own_is_data_preparation(tiny_dir, tmp_path, hand):
    OwnLoader.clock = hand
    train_causal(OwnLoader, tiny_dir, tmp_path)
    assert valid_account(tmp_path).time.phase_seconds["data_preparation"] == 3.0
