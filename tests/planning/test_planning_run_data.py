"""A plan by the run's data, where they lie here, and where they do not."""

import json
from pathlib import Path

import pytest
from planned_recipes import tiny_recipe

from hf_efficient.errors import DataError
from hf_efficient.planning.advice import with_advice
from hf_efficient.planning.batches import unread_pauses
from hf_efficient.planning.plan import plan
from hf_efficient.planning.run_data import data_at_hand
from hf_efficient.planning.simulated_trainer import SimulatedEvaluation
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
    args, data = data_at_hand(recipe("train.gradient_accumulation_steps=4"))
    assert (len(data.train), len(data.eval)) == (8, 4)
    assert (args.gradient_accumulation_steps, args.num_train_epochs) == (4, 3)
    wanted = recipe()
    path = Path(wanted.data.train[0].path)
    path.write_text(path.read_text() + "{not json\n")
    with pytest.raises(DataError, match=r"train\.jsonl:9"):
        data_at_hand(wanted)


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


def test_data_that_are_to_be_prepared_first_are_asked_for(recipe, tmp_path):
    asked = data_at_hand(recipe("data.pipeline={}", f"data.prepared_dir={tmp_path}/prepared"))
    assert str(asked).startswith(f"data.pipeline: there is no {tmp_path}/prepared yet. Run `hf-efficient prepare ")


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


@pytest.mark.slow
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


def test_fewer_rows_than_a_step_asks_for_and_none(recipe):
    found = plan(recipe("train.gradient_accumulation_steps=5"), ["L4"])
    assert found.steps == 3
    assert "a step asks for 10 rows, and the data have 8: these are an epoch of one step" in (found.assumptions)
    found = plan(recipe(), ["L4"], read_data=False)
    assert (found.data, found.row_tokens, found.steps) == (None, 300, None)
    assert found.assumptions[0] == "every row has 300 tokens, the most that the recipe allows: shorter ones need less"


EVAL = ("data.eval=[{path: more.jsonl}]",)
BATCH = SimulatedEvaluation(0, rows=8, length=256, operators=())


@pytest.fixture
def unread_data_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: tiny_recipe(tmp_path, *overrides)


@pytest.mark.parametrize(
    ("overrides", "ranks", "batches"),
    [
        (["data.max_eval_examples=20"], 1, 2.5),  # once, at the end
        (["data.max_eval_examples=20"], 2, 1.25),
        (["data.max_eval_examples=20", "train.eval_strategy=steps", "train.eval_steps=0.3"], 1, 10.0),  # 3, 6, 9, 10
        (["data.max_eval_examples=20", "train.eval_strategy=epoch"], 1, None),
        ([], 1, None),
        (["train.eval_strategy=steps", "train.eval_delay=11", "evaluate.at_end=false"], 1, 0.0),
    ],
)
def test_batches_of_all_evaluations(unread_data_recipe, overrides, ranks, batches):
    assert unread_pauses(unread_data_recipe(*EVAL, *overrides), 10, BATCH, ranks) == (batches, 1)


BEST = ["train.save_strategy=best", "train.metric_for_best_model=loss"]


@pytest.mark.parametrize(
    ("overrides", "saves"),
    [
        (["train.save_steps=4"], 3),
        (["train.save_strategy=epoch"], None),
        ([], 1),
        ([*BEST, "train.eval_strategy=epoch", *EVAL], None),
        ([*BEST, "train.eval_strategy=steps", "train.eval_steps=5", *EVAL], 2),
    ],
)
def test_saves(unread_data_recipe, overrides, saves):
    assert unread_pauses(unread_data_recipe(*overrides), 10, None, 1) == (0.0, saves)


def only(unread_data_recipe):
    found = plan(unread_data_recipe, ["H100 SXM"], read_data=False)
    return found.gpus[0], found.assumptions


def about(assumptions, word):
    return [told for told in assumptions if word in told]


def test_evaluations_are_in_the_hours(unread_data_recipe):
    steps = "train.max_steps=10"
    without, silent = only(unread_data_recipe(steps))
    few, told = only(unread_data_recipe(*EVAL, steps, "data.max_eval_examples=8"))
    many, _ = only(unread_data_recipe(*EVAL, steps, "data.max_eval_examples=16"))
    assert without.run_evaluation_seconds == 0
    assert few.run_evaluation_seconds > 0
    assert many.run_evaluation_seconds == pytest.approx(2 * few.run_evaluation_seconds)
    assert few.run_seconds == pytest.approx(without.run_seconds + few.run_evaluation_seconds)
    assert about(told, "evaluation") == ["every evaluation has data.max_eval_examples rows, 8, of as many tokens"]
    assert about(silent, "evaluation") == []


def test_pauses_that_are_not_known_are_named(unread_data_recipe):
    gpu, told = only(unread_data_recipe(*EVAL, "train.max_steps=10"))
    assert gpu.run_evaluation_seconds is None
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds + gpu.run_saving_seconds)
    (note,) = about(told, "evaluation")
    assert note.startswith("hours and money hold no evaluations: ")
    assert about(only(unread_data_recipe(*EVAL))[1], "evaluation") == []  # no hours that could hold them
    gpu, told = only(unread_data_recipe("train.max_steps=10", "train.save_strategy=epoch"))
    assert gpu.run_saving_seconds is None
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds)
    (note,) = about(told, "hours and money")
    assert note.startswith("hours and money hold no saves of checkpoints: ")


def test_saves_in_the_hours(unread_data_recipe):
    steps = ("train.max_steps=10", "train.save_steps=4")
    gpu, told = only(unread_data_recipe(*steps))
    each = gpu.spot.checkpoint_bytes / 131e6
    assert gpu.run_saving_seconds == pytest.approx(3 * each)
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds + 3 * each)
    (note,) = about(told, "hours and money")
    assert note.startswith("hours and money hold 3 saves of ")
    assert "written at 131 MB/s (an AWS gp3 volume)" in note
    own, told = only(unread_data_recipe(*steps, "cost.spot.write_mb_per_second=262"))
    assert own.run_saving_seconds == pytest.approx(1.5 * each)
    assert about(told, "hours and money")[0].endswith("written at your 262 MB/s")
    for override in ("train.save_strategy=no", "cost.market=spot"):
        assert about(only(unread_data_recipe("train.max_steps=10", override))[1], "hours and money") == []
