"""What is measured of a variant: for real, in this process, on a model of two layers; batches and clock alone."""

from types import SimpleNamespace

import pytest
import torch
from transformers import Trainer

from hf_efficient.recipe.load import load_recipe
from hf_efficient.trials.variant_runs import MEASURES, Setup, StepStamps, hold_batches
from hf_efficient.trials.variants import VARIANTS, in_folder, varied
from tests.trials.conftest import worked

STEPS, WARM_UP = 5, 1
NO_EVALUATION = ("train.eval_strategy=no", "train.load_best_model_at_end=false", "evaluate.early_stopping=null")
NAMED = {one.name: one for one in VARIANTS}


@pytest.fixture
def worker(recipe_file, tmp_path):
    """``worker("as_is", "a.b=value", ...)`` measures, and returns what was left."""

    def run(name, *overrides):
        options = {"variant": name, "steps": STEPS, "warm_up": WARM_UP, "share": 1}
        found = worked(tmp_path / name, "variant", recipe_file, *overrides, **options)
        return found.get("result", found)

    return run


def test_the_recipe_as_it_is_gives_steps_logs_phases_and_the_schedule_of_the_whole_run(worker, tmp_path):
    found = worker("as_is")
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
    every = {"steps": 12, "log_every": 2, "evaluate_every": 4, "save_every": 4}
    assert {name: schedule[name] for name in every} == every
    assert (schedule["best_at_end"], schedule["evaluation_rows"], schedule["accumulation"]) == (True, 4, 3)
    assert not (tmp_path / "out").exists()


def test_all_variants_train_on_the_batches_of_the_recipe(worker):
    assert set(MEASURES) == set(NAMED)
    tokens = [worker(name)["step_tokens"] for name in ("quiet", "held_batches", "loader")]
    assert len(set(tokens[0])) > 1
    assert tokens[1:] == [tokens[0]] * 2


def test_micro_batches_of_twice_the_rows_hold_about_twice_the_tokens(worker):
    halved = worker("micro_batch_halved")
    doubled = worker("micro_batch_doubled")
    assert sum(doubled["micro_batch_tokens"]) > 3 * sum(halved["micro_batch_tokens"])  # 4 rows against 1
    assert len(doubled["micro_batch_seconds"]) == STEPS


@pytest.mark.parametrize(("overrides", "evaluations"), [((), 2), (NO_EVALUATION, 0)])
def test_evaluations_and_saves_are_timed_twice(worker, overrides, evaluations):
    found = worker("pauses", *overrides)
    counts = [len(found[name]) for name in ("evaluation_seconds", "save_seconds", "step_seconds")]
    assert counts == [evaluations, 2, 0]
    assert min(found["evaluation_seconds"] + found["save_seconds"]) > 0


def test_tokenisation_does_not_look_into_the_cache(worker, tmp_path):
    cache = tmp_path / "cache"
    same = (*NO_EVALUATION, "data.eval_fraction=null", "data.max_train_examples=10", f"data.cache_dir={cache}")
    assert worker("quiet", *same)["step_seconds"]  # fills it with what the tokenisation makes
    assert sorted(cache.iterdir())
    found = worker("tokenisation", *same)
    assert sorted(tmp_path.glob("tokenisation/tokenized/*"))
    assert found["examples"] == 10
    assert found["tokens"] > 10 * 10
    assert found["prepare_seconds"] > 0


def test_what_the_user_can_correct_is_left_in_words(worker, monkeypatch):
    found = worker("quiet", "model.id=/no/such/model")
    assert found["kind"] == "input"
    assert "/no/such/model" in found["failure"]

    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("tried to allocate 80 GiB")

    monkeypatch.setattr(Trainer, "training_step", out_of_memory)
    found = worker("held_batches")
    assert found["kind"] == "input"
    assert "out of device memory: tried to allocate 80 GiB" in found["failure"]


@pytest.mark.parametrize("name", ["forward", "forward_no_grad"])
def test_neither_backward_nor_update_happens(recipe_file, tmp_path, monkeypatch, name):
    original = in_folder(load_recipe(recipe_file), tmp_path / "w")
    seen, graphs = [], []
    step, loss_of = Trainer.training_step, Trainer.compute_loss

    def watched(self, model, *args, **kwargs):
        weights = torch.cat([one.detach().flatten() for one in model.parameters()])
        loss = step(self, model, *args, **kwargs)
        seen.append((weights, [one.grad for one in model.parameters()]))
        return loss

    def kept(self, *args, **kwargs):
        loss = loss_of(self, *args, **kwargs)
        graphs.append((loss[0] if isinstance(loss, tuple) else loss).requires_grad)
        return loss

    monkeypatch.setattr(Trainer, "training_step", watched)
    monkeypatch.setattr(Trainer, "compute_loss", kept)
    found = MEASURES[name](Setup(varied(original, NAMED[name], 3), original, 2, 1))
    assert len(found.step_seconds) == 2
    assert graphs == [name == "forward"] * len(seen)
    assert all(torch.equal(weights, seen[0][0]) for weights, _ in seen)
    assert all(grad is None for _, grads in seen for grad in grads)


class Loader:
    """Three batches an epoch: each holds its epoch and its place."""

    dataset = range(3)

    def __init__(self) -> None:
        self.epoch, self.ended = 0, 0

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for place in range(3):
            yield {"input_ids": torch.tensor([[self.epoch, place]]), "note": "text"}

    def end(self):
        self.ended += 1


def trainer(loader, accumulation=2):
    args = SimpleNamespace(gradient_accumulation_steps=accumulation, device=torch.device("cpu"))
    return SimpleNamespace(args=args, get_train_dataloader=lambda: loader)


def places(batches):
    return [tuple(batch["input_ids"][0].tolist()) for batch in batches]


def test_one_of_two_processes_takes_every_other_batch():
    loader = Loader()
    held = hold_batches(trainer(loader), 2, share=2)
    assert (len(held), loader.ended) == (2, 1)
    next(iter(held)).pop("input_ids")  # what a trainer takes out of a batch is there the next time
    assert places(held) == [(0, 0), (0, 2)]
    held.set_epoch(1)
    assert places(held) == [(1, 0), (1, 2)]


def test_a_step_is_what_lies_between_the_ends_of_two():
    readings = iter([10.0, 11.0, 13.0, 16.0])
    added = []
    batches = [{"input_ids": torch.zeros(2, 5)}, {"input_ids": torch.zeros(2, 7)}]
    watched = SimpleNamespace(get_batch_samples=lambda *args: (batches, 3), add_callback=added.append)
    stamps = StepStamps(watched, warm_up=1, now=lambda: next(readings))
    assert added == [stamps]
    args = SimpleNamespace(device=torch.device("cpu"))
    for step in range(1, 5):
        assert watched.get_batch_samples("iterator", 2) == (batches, 3)
        stamps.on_step_end(args, SimpleNamespace(global_step=step, max_steps=4), None)
        if step == 2:
            stamps.on_log(args, SimpleNamespace(global_step=step, max_steps=4), None)
    found = stamps.measurement()
    assert found.step_seconds == [1.0, 2.0, 3.0]
    assert (found.step_tokens, found.step_micro_batches) == ([24] * 3, [2] * 3)
    assert found.step_logged == [False, True, False]  # the log after step 2 falls into step 3
