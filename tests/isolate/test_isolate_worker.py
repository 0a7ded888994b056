"""Every kind of variant measured for real, in this process, on a model of two layers."""

from __future__ import annotations

import json

import pytest

from hf_efficient.isolate.worker import MEASUREMENT, main

STEPS, WARM_UP = 5, 1
NO_EVALUATION = ("train.eval_strategy=no", "train.load_best_model_at_end=false", "evaluate.early_stopping=null")


@pytest.fixture
def worker(recipe_file, tmp_path):
    """``worker("as_is", "a.b=value", ...)`` measures, and returns the exit code and what was left."""

    def run(name, *overrides):
        folder = tmp_path / name
        folder.mkdir()
        options = [f"--variant={name}", f"--steps={STEPS}", f"--warm-up={WARM_UP}", f"--folder={folder}"]
        code = main([str(recipe_file), *overrides, *options])
        return code, json.loads((folder / MEASUREMENT).read_text())

    return run


def test_the_recipe_as_it_is_tells_steps_logs_phases_and_the_schedule_of_the_whole_run(worker, tmp_path):
    code, found = worker("as_is")
    assert code == 0
    assert len(found["step_seconds"]) == STEPS
    assert min(found["step_seconds"]) > 0
    # 20 chats in batches of 2, 3 to a step: an epoch is 3 steps of three, and one of the batch that is left
    assert found["step_micro_batches"] == [3, 3, 1, 3, 3]
    # logs after steps 2 and 4 fall into the steps that follow them
    assert found["step_logged"] == [False, True, False, True, False]
    assert len(found["micro_batch_seconds"]) == STEPS
    each = [tokens / count for tokens, count in zip(found["step_tokens"], found["step_micro_batches"], strict=True)]
    assert found["micro_batch_tokens"] == pytest.approx(each)
    schedule = found["schedule"]
    assert {name: schedule[name] for name in ("steps", "log_every", "evaluate_every", "save_every")} == {
        "steps": 12,
        "log_every": 2,
        "evaluate_every": 4,
        "save_every": 4,
    }
    assert (schedule["best_at_end"], schedule["evaluation_rows"], schedule["accumulation"]) == (True, 4, 3)
    assert not (tmp_path / "out").exists()


def test_all_variants_train_on_the_batches_of_the_recipe(worker):
    tokens = [worker(name)[1]["step_tokens"] for name in ("quiet", "held_batches", "forward", "loader")]
    assert len(tokens[0]) == STEPS
    assert len(set(tokens[0])) > 1
    assert tokens[1:] == [tokens[0]] * 3


def test_micro_batches_of_twice_the_rows_hold_about_twice_the_tokens(worker):
    _, halved = worker("micro_batch_halved")
    _, doubled = worker("micro_batch_doubled")
    assert sum(doubled["micro_batch_tokens"]) > 3 * sum(halved["micro_batch_tokens"])  # 4 rows against 1
    assert len(doubled["micro_batch_seconds"]) == STEPS


def test_evaluations_and_saves_are_timed_twice(worker):
    _, found = worker("pauses")
    assert [len(found[name]) for name in ("evaluation_seconds", "save_seconds", "step_seconds")] == [2, 2, 0]
    assert min(found["evaluation_seconds"] + found["save_seconds"]) > 0


def test_a_recipe_without_evaluations_has_only_saves_timed(worker):
    _, found = worker("pauses", *NO_EVALUATION)
    assert [len(found[name]) for name in ("evaluation_seconds", "save_seconds")] == [0, 2]


def test_tokenisation_does_not_look_into_the_cache(worker, tmp_path):
    cache = tmp_path / "cache"
    same = (*NO_EVALUATION, "data.eval_fraction=null", "data.max_train_examples=10", f"data.cache_dir={cache}")
    assert worker("quiet", *same)[0] == 0  # fills it with what the tokenisation makes
    assert sorted(cache.iterdir())
    _, found = worker("tokenisation", *same)
    assert sorted(tmp_path.glob("tokenisation/tokenized/*"))
    assert found["examples"] == 10
    assert found["tokens"] > 10 * 10
    assert found["prepare_seconds"] > 0


def test_what_the_user_can_mend_is_left_in_words(worker):
    code, found = worker("quiet", "model.id=/no/such/model")
    assert code == 2
    assert "/no/such/model" in found["failure"]


def test_memory_that_runs_out_is_named(worker, monkeypatch):
    import torch
    from transformers import Trainer

    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(Trainer, "training_step", out_of_memory)
    code, found = worker("quiet")
    assert code == 2
    assert "out of device memory: tried to allocate 80 GiB" in found["failure"]
