"""What goes wrong without an error is in the records: skipped updates, losses that are no number, idle parameters."""

from __future__ import annotations

import pytest
import torch
from tiny_training import causal_trainer, stated, train_causal
from transformers import Trainer, TrainerCallback

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.run_facts import SilentFailures
from hf_efficient.recording.timeline import Timeline
from hf_efficient.trainer import EfficientTrainer


class SometimesNaN(EfficientTrainer):
    """Every third micro-batch tells no loss, though its gradients are there."""

    seen = 0

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        self.seen += 1
        return loss + float("nan") if self.seen % 3 == 0 else loss


class SkipsAnUpdate(TrainerCallback):
    """Says of the second update what a gradient scaler would."""

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        optimizer._is_overflow = state.global_step == 1


def ways(kind):
    return (EfficientTrainer, []) if kind == "mixin" else (Trainer, [AccountCallback()])


def test_losses_that_are_no_number_are_counted(tiny_dir, tmp_path):
    train_causal(SometimesNaN, tiny_dir, tmp_path, max_steps=4, gradient_accumulation_steps=2)
    found = stated(tmp_path, "silent_failures")
    assert (found["losses"], found["losses_not_finite"], found["updates"]) == (8, 2, 4)


def test_many_losses_are_counted_on_their_device(tiny_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_efficient.callbacks.run_facts._MOST_LOSSES", 2)
    train_causal(SometimesNaN, tiny_dir, tmp_path, max_steps=7, logging_steps=100)
    assert (
        stated(tmp_path, "silent_failures")["losses"],
        stated(tmp_path, "silent_failures")["losses_not_finite"],
    ) == (7, 2)


@pytest.mark.parametrize("kind", ["mixin", "callback"])
def test_an_update_that_a_scaler_leaves_out_is_counted(tiny_dir, tmp_path, kind):
    trainer, callbacks = ways(kind)
    train_causal(trainer, tiny_dir, tmp_path, callbacks=[*callbacks, SkipsAnUpdate()], max_steps=3)
    found = stated(tmp_path, "silent_failures")
    assert (found["updates"], found["skipped_updates"]) == (3, 1)
    assert ("losses_not_finite" in found) == (kind == "mixin")


@pytest.mark.parametrize("kind", ["mixin", "callback"])
def test_a_trainable_parameter_without_gradient_is_named(tiny_dir, tmp_path, kind):
    trainer, callbacks = ways(kind)
    mixin = {"check_gradients": False} if kind == "mixin" else {}
    one = causal_trainer(trainer, tiny_dir, tmp_path, "full", callbacks=callbacks, mixin=mixin)
    one.model.register_parameter("idle", torch.nn.Parameter(torch.zeros(2)))
    one.train()
    found = stated(tmp_path, "silent_failures")
    assert (found["without_gradient"], found["names_without_gradient"]) == (1, ["idle"])
    assert found["trainable_parameters"] == sum(1 for _ in one.model.parameters())


def test_a_healthy_training_states_that_nothing_failed(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path)
    found = stated(tmp_path, "silent_failures")
    counts = {name: found[name] for name in ("updates", "skipped_updates", "losses", "losses_not_finite")}
    assert counts == {"updates": 3, "skipped_updates": 0, "losses": 3, "losses_not_finite": 0}
    assert (found["without_gradient"], found["names_without_gradient"]) == (0, [])


FAULT = "Silent failures are no longer counted, because of a fault; training goes on."


@pytest.mark.parametrize("fails_first", ["loss", "settle"])
def test_after_a_fault_nothing_is_counted_until_the_next_training(fails_first, caplog):
    class Broken:
        requires_grad = property(lambda self: 1 / 0)

    failures = SilentFailures(Timeline())
    failures.loss(torch.tensor(1.0))
    if fails_first == "settle":
        failures._losses.append("no tensor")
        failures.settle()
    for _ in range(2):
        failures.loss(Broken())
        failures.loss(torch.tensor(1.0))
    assert [record.getMessage() for record in caplog.records] == [FAULT]
    failures.begin()
    failures.loss(torch.tensor(1.0))
    assert failures._losses == [torch.tensor(1.0)]
