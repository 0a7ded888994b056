"""A recipe of every objective of preferences, from its file to the card."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from hf_efficient.accounting.account import read_account
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class
from tests.conftest import logged_values


@pytest.fixture
def preferences(tiny_recipe, tmp_path):
    """The recipe on twelve pairs."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = (f"data.train=[{{path: {pairs}}}]", "data.eval_fraction=0.25", "evaluate.metrics=[]", "adapter.dropout=0")
    return lambda *overrides: tiny_recipe(*own, "train.gradient_checkpointing=false", *overrides)


@pytest.mark.parametrize("objective", ["dpo", pytest.param("kto", marks=pytest.mark.slow)])
def test_the_reference_is_computed_once(objective, preferences, tmp_path, monkeypatch):
    trainer, computed = trl_class(OBJECTIVES[objective].trainer), []
    original = trainer.compute_ref_log_probs
    monkeypatch.setattr(trainer, "compute_ref_log_probs", lambda *args: computed.append(1) or original(*args))
    own = (f"objective={objective}", "train.precompute_ref_log_probs=true", f"data.cache_dir={tmp_path / 'cache'}")
    counts, losses = [], []
    for name, length in (("first", 96), ("again", 96), ("shorter", 13)):
        run_recipe(preferences(*own, f"train.max_length={length}", f"output_dir={tmp_path / name}"))
        counts.append(len(computed))
        losses.append(logged_values(tmp_path / name))
        computed.clear()
    assert counts[0] > 0
    assert (counts[1], losses[1]) == (0, losses[0])
    assert counts[2] > 0  # the answers are cut elsewhere


FIRST = {"kto": 0.5, "dpo": math.log(2)}
CARD = {
    "kto": "Kahneman-Tversky optimization",
    "reward": "reward model",
    "orpo": "odds ratio preference optimization",
    "cpo": "contrastive preference optimization",
}


@pytest.mark.parametrize("objective", ["kto", "reward", "orpo", "cpo"])
def test_an_objective_end_to_end(objective, preferences, tmp_path):
    out = tmp_path / "out"
    result = run_recipe(preferences(f"objective={objective}"))
    losses = logged_values(out)
    assert len(losses) == 4
    assert all(map(math.isfinite, losses))
    assert losses[0] == pytest.approx(FIRST.get(objective, losses[0]), abs=1e-4)
    assert "loss" in result.after
    account = read_account(out / "efficiency/run.json")
    assert account.steps.count == 4
    assert account.tokens.non_padding > 0
    assert account.sequences.samples > 0
    card = (out / "README.md").read_text()
    assert f"| objective | {CARD[objective]} |" in card
    saved = load_file(out / "adapter_model.safetensors")
    assert any(name.endswith("score.weight") for name in saved) == (objective == "reward")
    assert ("AutoModelForSequenceClassification" in card) == (objective == "reward")


@pytest.mark.slow
def test_a_reward_model_is_merged(preferences, tmp_path):
    run = run_recipe(preferences("objective=reward", "adapter.merge=true"))
    model = AutoModelForSequenceClassification.from_pretrained(run.merged_dir)
    head = load_file(tmp_path / "out/adapter_model.safetensors")
    (saved,) = (tensor for name, tensor in head.items() if name.endswith("score.weight"))
    assert torch.equal(model.score.weight, saved)
