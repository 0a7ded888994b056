"""Evaluations and saves of a run whose data were not read, by hand."""

from __future__ import annotations

import pytest
from planned_recipes import tiny_recipe

from hf_efficient.planning.plan import plan
from hf_efficient.planning.run_data import UnreadPauses, unread_pauses
from hf_efficient.planning.trainers import SimulatedEvaluation

EVAL = ("data.eval=[{path: more.jsonl}]",)
BATCH = SimulatedEvaluation(0, rows=8, length=256, operators=())


@pytest.fixture
def recipe(tmp_path, monkeypatch):
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
def test_batches_of_all_evaluations(recipe, overrides, ranks, batches):
    assert unread_pauses(recipe(*EVAL, *overrides), 10, BATCH, ranks) == UnreadPauses(batches, 1)


@pytest.mark.parametrize(
    ("overrides", "saves"), [(["train.save_steps=4"], 3), (["train.save_strategy=epoch"], None), ([], 1)]
)
def test_saves(recipe, overrides, saves):
    assert unread_pauses(recipe(*overrides), 10, None, 1) == UnreadPauses(0.0, saves)


def only(recipe):
    found = plan(recipe, ["H100 SXM"], read_data=False)
    return found.gpus[0], found.assumptions


def about(assumptions, word):
    return [told for told in assumptions if word in told]


def test_evaluations_are_in_the_hours(recipe):
    steps = "train.max_steps=10"
    without, silent = only(recipe(steps))
    few, told = only(recipe(*EVAL, steps, "data.max_eval_examples=8"))
    many, _ = only(recipe(*EVAL, steps, "data.max_eval_examples=16"))
    assert without.run_evaluation_seconds == 0
    assert few.run_evaluation_seconds > 0
    assert many.run_evaluation_seconds == pytest.approx(2 * few.run_evaluation_seconds)
    assert few.run_seconds == pytest.approx(without.run_seconds + few.run_evaluation_seconds)
    assert about(told, "evaluation") == ["every evaluation has data.max_eval_examples rows, 8, of as many tokens"]
    assert about(silent, "evaluation") == []


def test_evaluations_that_are_not_known_are_named(recipe):
    gpu, told = only(recipe(*EVAL, "train.max_steps=10"))
    assert gpu.run_evaluation_seconds is None
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds + gpu.run_saving_seconds)
    (note,) = about(told, "evaluation")
    assert note.startswith("hours and money hold no evaluations: ")
    assert about(only(recipe(*EVAL))[1], "evaluation") == []  # no hours that could hold them


def test_saves_that_are_not_known_are_named(recipe):
    gpu, told = only(recipe("train.max_steps=10", "train.save_strategy=epoch"))
    assert gpu.run_saving_seconds is None
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds)
    (note,) = about(told, "hours and money")
    assert note.startswith("hours and money hold no saves of checkpoints: ")


def test_saves_are_in_the_hours_and_whose_disk_they_go_to_is_named(recipe):
    steps = ("train.max_steps=10", "train.save_steps=4")
    gpu, told = only(recipe(*steps))
    each = gpu.spot.checkpoint_bytes / 131e6
    assert gpu.run_saving_seconds == pytest.approx(3 * each)
    assert gpu.run_seconds == pytest.approx(10 * gpu.step_seconds + 3 * each)
    (note,) = about(told, "hours and money")
    assert note.startswith("hours and money hold 3 saves of ")
    assert "written at 131 MB/s (an AWS gp3 volume)" in note
    own, told = only(recipe(*steps, "efficiency.spot.write_mb_per_second=262"))
    assert own.run_saving_seconds == pytest.approx(1.5 * each)
    assert about(told, "hours and money")[0].endswith("written at your 262 MB/s")


def test_of_the_best_there_are_at_most_so_many_saves(recipe):
    best = ("train.save_strategy=best", "train.eval_strategy=steps", "train.eval_steps=5")
    _, told = only(recipe(*EVAL, *best, "train.metric_for_best_model=loss", "train.max_steps=10"))
    assert about(told, "hours and money hold up to 2 saves of ")


def test_nothing_of_saves_where_there_are_none_or_spot_has_its_own(recipe):
    for override in ("train.save_strategy=no", "efficiency.market=spot"):
        assert about(only(recipe("train.max_steps=10", override))[1], "hours and money") == []
