"""Quantisation-aware training, from its recipe to the weights that are saved; torchao is an extra of its own."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_efficient.errors import ModelError, RecipeError, SetupError
from hf_efficient.launch.run import run_recipe
from hf_efficient.model import adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.recipe.schema import QatSection
from tests.conftest import logged_values

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # its independent measure of the real peak
import plan_accuracy

FULL = ("adapter.method=full", "adapter.dropout=0", "train.gradient_checkpointing=false", "model.dtype=float32")
QAT = (*FULL, "model.qat.group_size=16")


def test_what_is_missing_is_named(tiny_llama_dir, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(SetupError, match=r"pip install 'hf-efficient\[qat\]'"):
        adapter.round_in_training(AutoModelForCausalLM.from_pretrained(tiny_llama_dir), QatSection())


def test_frozen_weights_are_not_rounded(tiny_recipe):
    with pytest.raises(RecipeError, match="the weights that it rounds are frozen"):
        tiny_recipe("model.qat.bits=4")


class TestWithTorchao:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("torchao")

    def test_weights_multiply_as_integers_times_a_scale(self, tiny_llama_dir):
        """Symmetric in groups of 16: at most 16 values times the group's scale. The gradient passes, but for weights
        that are cut to the largest integer."""
        model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
        assert adapter.round_in_training(model, QatSection(group_size=16)) == 2 * 7
        layer = model.model.layers[0].mlp.up_proj
        rounded = layer(torch.eye(32)).detach().t()
        for group in rounded.reshape(-1, 16)[:20]:
            off = [(group / group.abs().max() * most) for most in (7, 8)]  # the largest is -8, or 7 or -7
            assert min(float((one - one.round()).abs().max()) for one in off) < 1e-3
        assert 0 < (rounded - layer.weight).abs().max() < layer.weight.abs().max() / 7
        layer(torch.ones(1, 32)).sum().backward()
        passed = torch.isclose(layer.weight.grad, torch.ones(()))
        assert 0.9 < passed.float().mean() < 1
        assert layer.weight.grad[~passed].abs().max() < 1e-6
        with pytest.raises(
            ModelError, match=r"group_size: is 48, which does not divide the 32 inputs of model\.layers"
        ):
            adapter.round_in_training(model, QatSection(group_size=48))

    def test_a_run_end_to_end(self, tiny_recipe, tmp_path):
        """It evaluates the rounded model; what it saves is an ordinary one."""
        result = run_recipe(tiny_recipe(*QAT))
        assert len(logged_values(tmp_path / "out")) == 4
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        assert type(saved.model.layers[0].mlp.up_proj) is torch.nn.Linear
        plain = run_recipe(tiny_recipe(*FULL, f"output_dir={tmp_path / 'plain'}"))
        assert result.after["loss"] != plain.after["loss"]

    def test_the_planned_peak_is_the_real_one(self, tiny_recipe, tiny_llama_dir, monkeypatch):
        wanted = tiny_recipe(*QAT)
        config = model_config(wanted.model)
        planned = planned_memory(simulate(wanted, config, 64, on_gpu=False)).peak_allocated_bytes

        def rounded(recipe):
            model = load_base(recipe)
            adapter.round_in_training(model, recipe.model.qat)
            return model

        monkeypatch.setattr(plan_accuracy, "load_base", rounded)
        assert planned == pytest.approx(plan_accuracy.real_peak(wanted, config, 64), rel=0.002)
