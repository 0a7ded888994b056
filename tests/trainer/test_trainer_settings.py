"""How a run was set up, as its records state it for the diagnosis."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from tiny_training import arguments, build_model, collator, every, rows, train_causal
from transformers import Trainer
from trl import SFTConfig, SFTTrainer

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.diagnosis.case import read_case
from hf_efficient.diagnosis.engine import diagnose, read_diagnosis
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


class MySFT(EfficientTrainerMixin, SFTTrainer):
    pass


def stated(output):
    return read_case(output / "efficiency")


@pytest.mark.slow
def test_arguments_model_optimizer_and_host_are_stated(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, hub_token="hf_secret")
    case = stated(tmp_path)
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
def test_a_callback_alone_and_an_sft_trainer_state_them_too(tiny_dir, tmp_path):
    settings = {"train_dataset": Dataset.from_list(rows()), "data_collator": collator()}
    model = build_model(tiny_dir, "full")
    args = arguments(tmp_path / "alone", max_steps=1)
    Trainer(model=model, args=args, callbacks=[AccountCallback()], **settings).train()
    assert stated(tmp_path / "alone").settings("model")["weights_dtype"] == "float32"
    args = arguments(tmp_path / "sft", SFTConfig, max_steps=1, packing=False, gradient_checkpointing=True)
    MySFT(model=build_model(tiny_dir, "full"), args=args, **settings).train()
    case = stated(tmp_path / "sft")
    assert case.argument("packing") is False
    assert case.settings("model")["activation_checkpointing"]


@pytest.mark.slow
def test_the_end_of_a_run_leaves_its_diagnosis(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2)
    found = read_diagnosis(tmp_path / "efficiency" / "diagnosis.json")
    assert found.steps == 2
    assert found.faults == []
    assert found.rules == diagnose(tmp_path).rules


@pytest.mark.slow
def test_a_script_is_told_its_first_finding_once(tiny_dir, tmp_path, caplog):
    changes = {"max_steps": 12, **every(save=1)}
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, "full", **changes)
    trainer.save_model()
    told = [one for one in caplog.messages if "hf-efficient diagnose" in one]
    assert len(told) == 1
    assert "is spent in checkpoints" in told[0]
