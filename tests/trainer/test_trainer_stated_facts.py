"""What the records state for the diagnosis: how a run was set up, and what goes wrong without an error."""

import msgspec
import pytest
import torch
from tiny_training import build_model, causal_trainer, every, stated, train_causal, trl_trainer
from transformers import Trainer, TrainerCallback

from hf_efficient import EfficientSFTTrainer
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.run_facts import _bfloat16_weights
from hf_efficient.diagnosis.case import read_case
from hf_efficient.diagnosis.engine import diagnose
from hf_efficient.records.findings import Diagnosis
from hf_efficient.trainer import EfficientTrainer


def case_of(output):
    return read_case(output / "efficiency")


@pytest.mark.slow
def test_arguments_model_optimizer_and_host_are_stated(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, hub_token="hf_secret")
    case = case_of(tmp_path)
    assert case.argument("learning_rate") == 0.01
    assert case.argument("save_strategy") == "no"
    assert "hub_token" not in case.settings("arguments")
    assert "hf_secret" not in (tmp_path / "efficiency" / "spans.jsonl").read_text()
    model = case.settings("model")
    assert (model["attention"], model["weights_dtype"], model["matmul_dtype"]) == ("sdpa", "float32", "fp32")
    assert not model["activation_checkpointing"]
    assert 0 < model["trainable_parameters"] < model["parameters"]
    assert case.settings("optimizer") == {"class": "AdamW", "fused": True}
    assert case.settings("device")["type"] == "cpu"
    assert case.settings("host")["torch_threads"] == torch.get_num_threads()


@pytest.mark.slow
def test_a_callback_alone_and_an_sft_trainer_state_them_too(tiny_dir, tmp_path, tiny_tokenizer):
    train_causal(Trainer, tiny_dir, tmp_path / "alone", "full", max_steps=1, callbacks=[AccountCallback()])
    assert case_of(tmp_path / "alone").settings("model")["weights_dtype"] == "float32"
    settings = {"max_steps": 1, "packing": False, "gradient_checkpointing": True}
    trl_trainer(
        EfficientSFTTrainer, build_model(tiny_dir, "full"), tmp_path / "sft", tiny_tokenizer, **settings
    ).train()
    case = case_of(tmp_path / "sft")
    assert case.argument("packing") is False
    assert case.settings("model")["activation_checkpointing"]


@pytest.mark.slow
def test_the_end_of_a_run_leaves_its_diagnosis(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2)
    written = (tmp_path / "efficiency" / "diagnosis.json").read_bytes()
    found = diagnose(tmp_path)
    assert (found.steps, found.faults) == (2, [])
    assert msgspec.json.decode(written, type=Diagnosis).rules == found.rules


@pytest.mark.slow
def test_a_script_is_told_its_findings_and_its_page_once(tiny_dir, tmp_path, caplog):
    changes = {"max_steps": 12, **every(save=1)}
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, "full", **changes)
    trainer.save_model()
    told = [one for one in caplog.messages if "hf-efficient diagnose" in one]
    assert len(told) == 1
    assert "is spent in checkpoints" in told[0]
    assert f"The page is {tmp_path / 'efficiency/report.html'}" in told[0]


def test_trained_weights_in_bfloat16_are_counted_by_their_size():
    weight, frozen, norm = torch.tensor([[0.0, 0.5, -0.75, 3.0]]).bfloat16(), torch.ones(2, 2).bfloat16(), torch.ones(2)
    held = [torch.nn.Parameter(weight), torch.nn.Parameter(frozen, requires_grad=False), torch.nn.Parameter(norm)]
    assert _bfloat16_weights(held) == {"bfloat16_weights": {"-1": 2, "1": 1}}
    assert _bfloat16_weights(held[1:]) == {}


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


@pytest.mark.parametrize("kept", [2, 64])
def test_losses_that_are_no_number_are_counted(tiny_dir, tmp_path, monkeypatch, kept):
    """Many of them on their device."""
    monkeypatch.setattr("hf_efficient.callbacks.run_facts._MOST_LOSSES", kept)
    settings = {"max_steps": 4, "gradient_accumulation_steps": 2, "logging_steps": 100}
    train_causal(SometimesNaN, tiny_dir, tmp_path, **settings)
    found = stated(tmp_path, "silent_failures")
    assert (found["losses"], found["losses_not_finite"], found["updates"]) == (8, 2, 4)


@pytest.mark.parametrize("kind", [EfficientTrainer, Trainer])
def test_a_skipped_update_is_counted_and_a_parameter_without_gradient_named(tiny_dir, tmp_path, kind):
    ours = kind is EfficientTrainer
    callbacks = [SkipsAnUpdate(), *([] if ours else [AccountCallback()])]
    mixin = {"check_gradients": False} if ours else {}
    one = causal_trainer(kind, tiny_dir, tmp_path, "full", callbacks=callbacks, mixin=mixin)
    one.model.register_parameter("idle", torch.nn.Parameter(torch.zeros(2)))
    one.train()
    found = stated(tmp_path, "silent_failures")
    assert (found["updates"], found["skipped_updates"]) == (3, 1)
    assert ("losses_not_finite" in found) == ours
    assert (found["without_gradient"], found["names_without_gradient"]) == (1, ["idle"])
    assert found["trainable_parameters"] == sum(1 for _ in one.model.parameters())
