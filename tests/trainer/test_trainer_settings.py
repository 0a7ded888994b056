"""How a run was set up, as its records state it for the diagnosis."""

from __future__ import annotations

import logging

import pytest
import torch
from datasets import Dataset
from tiny_training import arguments, build_model, causal_trainer, collator, rows
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
    causal_trainer(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, hub_token="hf_secret").train()
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
def test_a_fault_is_one_warning_and_the_training_goes_on(tiny_dir, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hf_efficient.callbacks.run_facts._cores", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, max_steps=1).train()
    assert [one for one in caplog.messages if "How this run was set up" in one]
    assert stated(tmp_path).settings("arguments") == {}


@pytest.mark.slow
def test_the_end_of_a_run_leaves_its_diagnosis(tiny_dir, tmp_path):
    causal_trainer(EfficientTrainer, tiny_dir, tmp_path, max_steps=2).train()
    found = read_diagnosis(tmp_path / "efficiency" / "diagnosis.json")
    assert found.steps == 2
    assert found.faults == []
    assert found.rules == diagnose(tmp_path).rules


@pytest.mark.slow
def test_a_script_is_told_its_first_finding_once(tiny_dir, tmp_path, caplog):
    changes = {"max_steps": 12, "save_strategy": "steps", "save_steps": 1}
    with caplog.at_level(logging.WARNING):
        trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, "full", **changes)
        trainer.train()
        trainer.save_model()
    told = [one for one in caplog.messages if "hf-efficient diagnose" in one]
    assert len(told) == 1
    assert "is spent in checkpoints" in told[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [OSError("disk full"), ZeroDivisionError("ours")])
def test_a_diagnosis_that_fails_leaves_the_run_and_its_page_alone(tiny_dir, tmp_path, monkeypatch, caplog, fault):
    def broken(*args):
        raise fault

    monkeypatch.setattr("hf_efficient.diagnosis.engine.diagnose_case", broken)
    with caplog.at_level(logging.WARNING):
        causal_trainer(EfficientTrainer, tiny_dir, tmp_path, max_steps=1).train()
    assert [one for one in caplog.messages if "could not be diagnosed" in one]
    assert (tmp_path / "efficiency" / "run.json").exists()
    assert not (tmp_path / "efficiency" / "diagnosis.json").exists()
