"""A recipe of every objective of preferences, from its file to the card."""

import json
import math

import pytest
from safetensors.torch import load_file

from hf_efficient.accounting.account import read_account
from hf_efficient.launch.run import run_recipe
from tests.conftest import logged_values


@pytest.fixture
def preferences(tiny_recipe, tmp_path):
    """The recipe on twelve pairs."""
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(12)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = (f"data.train=[{{path: {pairs}}}]", "data.eval_fraction=0.25", "evaluate.metrics=[]", "adapter.dropout=0")
    return lambda *overrides: tiny_recipe(*own, "train.gradient_checkpointing=false", *overrides)


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
