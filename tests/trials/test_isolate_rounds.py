"""Which variants run, how often and as which commands."""

import re
import sys

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.trials import isolate as room
from hf_efficient.trials.isolate import run_variants
from hf_efficient.trials.process import RunFailed
from hf_efficient.trials.variants import VARIANTS
from tests.conftest import small_recipe
from tests.trials.machine import Heard
from tests.trials.variants_run import measured

DATA = {"train": [{"path": "x"}], "eval_fraction": 0.1}
RECIPE = small_recipe(data=DATA, train={"eval_strategy": "steps", "per_device_train_batch_size": 4})


def began(told):
    """Round and variant of each line."""
    found = [re.match(r"\[\d+/\d+(?:, round (\d))?\] (\w+): ", line) for line in told.lines]
    return [(int(one[1] or 1), one[2]) for one in found]


def run(variants=VARIANTS, recipe=RECIPE, failing=(), **seconds):
    """The outcomes, and what was told; ``seconds`` holds those of each round of a variant."""
    told, counts = Heard(), {}

    def once(variant):
        if variant.name in failing:
            raise RunFailed("out of device memory")
        counts[variant.name] = number = counts.get(variant.name, 0) + 1
        rounds = seconds.get(variant.name)
        changes = {"step_seconds": [rounds[number - 1]] * 6} if rounds else {}
        return measured(variant.name, **changes)

    return run_variants(variants, recipe, once, told), told


def test_every_variant_that_applies_runs_in_order():
    _, told = run()
    names = [name for number, name in began(told) if number == 1]
    assert names == [one.name for one in VARIANTS if one.name != "one_process"]
    assert told.lines[0].startswith("[1/11] as_is: as it is, without evaluations and saves: ")


def test_small_differences_are_run_again_backwards():
    # recording takes 5% of the step and a log 10%; data and the backward take more and are clear
    found, told = run()
    assert [name for number, name in began(told) if number == 2] == ["logged", "quiet", "as_is"]
    assert not [name for number, name in began(told) if number == 3]
    assert [len(found[name].runs) for name in ("as_is", "quiet", "logged", "held_batches")] == [2, 2, 2, 1]


def test_a_variant_that_fails_is_named_and_the_others_go_on():
    found, told = run(failing=("held_batches", "logged"))
    assert sum(line.endswith("failed: out of device memory") for line in told.lines) == 2
    assert found["held_batches"].runs == []
    assert found["micro_batch_doubled"].runs
    assert [name for number, name in began(told) if number == 2] == ["quiet", "as_is"]


def test_a_variant_that_fails_in_a_later_round_keeps_its_first_run_and_is_not_tried_again():
    told, runs = Heard(), []

    def once(variant):
        runs.append(variant.name)
        if variant.name == "logged" and runs.count("logged") == 2:
            raise RunFailed("out of device memory")
        return measured(variant.name, **({"step_seconds": [0.9, 1.2] * 3} if variant.name == "as_is" else {}))

    found = run_variants(VARIANTS, RECIPE, once, told)
    assert (len(found["logged"].runs), found["logged"].failure) == (1, "out of device memory")
    assert runs.count("as_is") == 3
    assert runs.count("logged") == 2


def test_a_recipe_that_does_not_train_as_it_is_ends_it():
    with pytest.raises(SetupError, match="does not train: out of device memory"):
        run(failing=("as_is",))


def test_what_does_not_apply_says_why():
    quiet = dict.fromkeys(("logging_strategy", "save_strategy", "eval_strategy"), "no")
    found, _ = run(recipe=small_recipe(train={**quiet, "per_device_train_batch_size": 1}))
    assert {name: one.left_out for name, one in found.items() if one.left_out} == {
        "one_process": "the recipe trains in one process",
        "logged": "the recipe logs nothing",
        "pauses": "the recipe neither evaluates nor saves while it trains",
        "micro_batch_halved": "a micro-batch has one row",
    }


@pytest.mark.parametrize(
    ("processes", "devices", "started", "threads"), [(1, 0, 1, 4), (2, 0, 2, 2), ("auto", 3, 3, 1)]
)
def test_one_process_is_started_as_it_is_and_several_by_accelerate(
    monkeypatch, recipe_file, processes, devices, started, threads
):
    commands = {}

    def run_to_end(command, folder, count):
        commands[folder.name] = (command, count)
        raise RunFailed("enough")

    monkeypatch.setattr(room, "run_to_end", run_to_end)
    monkeypatch.setattr(room, "thread_count", lambda: 4)
    monkeypatch.setattr(room, "accelerator_count", lambda: devices)
    names = {one.name: one for one in VARIANTS}
    monkeypatch.setattr(room, "VARIANTS", [names["forward"], names["as_is"]])
    with pytest.raises(SetupError, match="does not train: enough"):
        room.isolate(str(recipe_file), [f"distributed.processes={processes}"], 6, Heard())
    alone, count = commands["forward"]
    assert (alone[:3], count) == ([sys.executable, "-m", "hf_efficient.trials.worker"], threads)
    several, count = commands["as_is"]
    assert (f"--num_processes={started}" in several, count) == (started > 1, threads)
    assert several[-2:-1] == ["hf_efficient.trials.worker"]
