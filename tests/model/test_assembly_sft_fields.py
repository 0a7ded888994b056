"""What SFTTrainer implements itself means the same in a recipe."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from hf_efficient.errors import RecipeError
from hf_efficient.launch.run import run_recipe
from hf_efficient.model.loss import apply_sft_fields, dft_loss
from hf_efficient.recipe.schema import Recipe


class Outputs:
    def __init__(self, logits):
        self.logits = logits


def test_dft_weighs_each_token_by_its_probability():
    # Two positions count: probabilities 1/2 and 1/4 over a vocabulary of 4, by hand.
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25], [1.0, 1, 1, 1]]]))
    labels = torch.tensor([[3, 0, 2]])
    expected = (0.5 * 0.693147 + 0.25 * 1.386294) / 2
    assert dft_loss(Outputs(logits), labels).item() == pytest.approx(expected, rel=1e-5)
    assert dft_loss(Outputs(logits), labels, num_items_in_batch=4).item() == pytest.approx(expected / 2, rel=1e-5)
    masked = torch.tensor([[3, 0, -100]])
    assert dft_loss(Outputs(logits), masked).item() == pytest.approx(0.5 * 0.693147, rel=1e-5)


def losses_of_recipe(model, chats, output, **train):
    recipe = Recipe(
        name="t",
        model={"id": str(model)},
        adapter={"method": "full"},
        data={"train": [{"path": str(chats)}]},
        train={**TRAIN, **train},
        output_dir=str(output),
    )
    run_recipe(recipe)
    state = json.loads((output / "trainer_state.json").read_text())
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


TRAIN = {
    "max_steps": 3,
    "max_length": 64,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "save_strategy": "no",
}


@pytest.mark.parametrize(
    "train", [{"loss_type": "dft"}, {"gradient_checkpointing_kwargs": {"selective": True}}, {"packing": True}]
)
def test_the_losses_are_sft_trainers(train, tiny_llama_dir, chats_jsonl, tmp_path):
    from datasets import Dataset

    got = losses_of_recipe(tiny_llama_dir, chats_jsonl, tmp_path / "ours", **train)
    args = SFTConfig(str(tmp_path / "theirs"), report_to="none", **{**TRAIN, **train})
    rows = [json.loads(line) for line in chats_jsonl.read_text().splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(tiny_llama_dir),
    )
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(got) == 3
    assert got == pytest.approx(theirs, rel=1e-5)


def test_a_router_loss_needs_experts(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    args = SFTConfig("x", router_aux_loss_coef=0.1, use_cpu=True, bf16=False)
    with pytest.raises(RecipeError, match="the model has no experts"):
        apply_sft_fields(model, args)
    apply_sft_fields(model, SFTConfig("x", use_cpu=True, bf16=False))


@pytest.mark.parametrize(("coefficient", "enabled", "kept"), [(0.5, True, 0.5), (0.0, False, 0.0), (None, True, 0.001)])
def test_the_router_loss_is_the_models_own(coefficient, enabled, kept):
    config = AutoConfig.for_model(
        "mixtral",
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=2,
        router_aux_loss_coef=0.001,
    )
    model = AutoModelForCausalLM.from_config(config)
    apply_sft_fields(model, SFTConfig("x", router_aux_loss_coef=coefficient, use_cpu=True, bf16=False))
    assert model.config.output_router_logits is enabled
    assert model.config.router_aux_loss_coef == kept


def test_selective_checkpointing_needs_checkpointing(tiny_llama_dir):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    args = SFTConfig(
        "x",
        gradient_checkpointing=False,
        gradient_checkpointing_kwargs={"selective": True},
        use_cpu=True,
        bf16=False,
    )
    with pytest.raises(RecipeError, match=r"selective: needs `train\.gradient_checkpointing: true`"):
        apply_sft_fields(model, args)
