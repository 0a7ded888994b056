"""Data that lie here are read, others are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_efficient.errors import DataError
from hf_efficient.planning.advice import with_advice
from hf_efficient.planning.plan import plan
from hf_efficient.planning.run_data import data_at_hand
from hf_efficient.recipe.load import load_recipe


@pytest.fixture
def recipe(tiny_llama_dir, tmp_path):
    """The tiny model with twelve chats, four of them to evaluate on; rows of 300 tokens at most."""

    def build(*overrides, rows=None):
        chats = [{"prompt": "a" * 4 * n, "completion": "b"} for n in range(1, 13)] if rows is None else rows
        for name, part in (("train", chats[:8]), ("eval", chats[8:])):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in part))
        (tmp_path / "r.yaml").write_text(
            f"""\
name: small
model: {{id: {tiny_llama_dir}}}
data:
  train: [{{path: {tmp_path}/train.jsonl}}]
  eval: [{{path: {tmp_path}/eval.jsonl}}]
  cache_dir: {tmp_path}/cache
train: {{max_length: 300, per_device_train_batch_size: 2, per_device_eval_batch_size: 2, num_train_epochs: 3}}
output_dir: {tmp_path}/out
"""
        )
        return load_recipe(tmp_path / "r.yaml", overrides)

    return build


def test_data_and_arguments(recipe):
    found = data_at_hand(recipe("train.gradient_accumulation_steps=4"))
    assert (len(found.data.train), len(found.data.eval)) == (8, 4)
    assert (found.args.gradient_accumulation_steps, found.args.num_train_epochs) == (4, 3)


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("data.train.0.path=nowhere.jsonl", "data.train.0.path: nowhere.jsonl is not on this machine"),
        ("data.eval.0.path=some/set", "data.eval.0.path: some/set is not on this machine"),
        ("model.tokenizer=some/model", "the tokenizer of some/model is not on this machine"),
    ],
)
def test_what_is_not_here_is_named(recipe, override, why):
    assert data_at_hand(recipe(override)) == why
    (first, *_) = plan(recipe(override), ["L4"]).assumptions
    assert first.endswith(f"shorter ones need less ({why})")


def test_what_is_here_and_wrong_is_an_error(recipe):
    wanted = recipe()
    path = Path(wanted.data.train[0].path)
    path.write_text(path.read_text() + "{not json\n")
    with pytest.raises(DataError, match=r"train\.jsonl:9"):
        data_at_hand(wanted)


def test_a_plan_by_the_data(recipe):
    """Eight rows in pairs: four steps an epoch, three epochs; four rows evaluated once."""
    found = plan(recipe(), ["H100 SXM"])
    assert found.steps == 12
    assert (found.data.examples, found.data.evaluation_rows, found.data.evaluations) == (8, 4, 1)
    assert found.row_tokens == found.data.longest_tokens < 300
    assert [one.name for one in found.data.batchings] == ["as they come", "grouped by length", "packed"]
    (gpu,) = found.gpus
    assert gpu.run_seconds == pytest.approx(12 * gpu.step_seconds + gpu.run_evaluation_seconds + gpu.run_saving_seconds)
    assert gpu.run_evaluation_seconds > 0
    assert gpu.run_saving_seconds == pytest.approx(gpu.spot.checkpoint_seconds)  # once, at the end
    by_epoch = plan(recipe("train.save_strategy=epoch"), ["H100 SXM"]).gpus[0]
    assert by_epoch.run_saving_seconds == pytest.approx(3 * gpu.spot.checkpoint_seconds)
    assert found.data.padding_share == pytest.approx(found.data.batchings[0].padding_share)
    assert found.data.batchings[1].padding_share < found.data.padding_share


def test_advice_by_the_data(recipe):
    """Rows are those of the data, not of ``max_length``; what is padded may be grouped or packed."""
    wanted = recipe("data.train.0.weight=5")
    found = with_advice(wanted, plan(wanted, ["L4"]))
    changes = {next(iter(one.overrides)): one for one in found.advice.changes}
    grouped, packed = changes["train.train_sampling_strategy"], changes["train.packing"]
    assert found.data.padding_share > 0.05
    assert grouped.after.tokens_per_second > grouped.before.tokens_per_second
    assert (grouped.keeps_training, packed.keeps_training) == (True, False)
    by_data = plan(recipe("data.train.0.weight=5", "train.train_sampling_strategy=group_by_length"), ["L4"])
    assert grouped.after.needed_bytes == by_data.gpus[0].needed_bytes
    assert grouped.after.step_seconds == pytest.approx(by_data.gpus[0].step_seconds)


def test_a_step_that_asks_for_more_rows_than_there_are(recipe):
    found = plan(recipe("train.gradient_accumulation_steps=5"), ["L4"])
    assert found.steps == 3
    assert "a step asks for 10 rows, and the data have 8: these are an epoch of one step" in (found.assumptions)


def test_or_without_them(recipe):
    found = plan(recipe(), ["L4"], read_data=False)
    assert (found.data, found.row_tokens, found.steps) == (None, 300, None)
    assert found.assumptions[0] == "every row has 300 tokens, the most that the recipe allows: shorter ones need less"
