"""Which variants run, and how often; their processes: what they leave, and that none outlives its variant."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from hf_efficient.errors import SetupError
from hf_efficient.isolate import experiment as module
from hf_efficient.isolate.experiment import Launch, VariantFailed, run_variant, run_variants
from hf_efficient.isolate.variants import VARIANTS
from hf_efficient.launch import exits
from tests.conftest import small_recipe
from tests.isolate.variants_run import measured

DATA = {"train": [{"path": "x"}], "eval_fraction": 0.1}
RECIPE = small_recipe(data=DATA, train={"eval_strategy": "steps", "per_device_train_batch_size": 4})


class Heard:
    """Remembers the progress."""

    def __init__(self) -> None:
        self.began: list[tuple[int, str]] = []
        self.failures: dict[str, str] = {}

    def begins(self, variant, number, of, round_number):
        self.began.append((round_number, variant.name))

    def ends(self, variant, seconds, failure):
        if failure:
            self.failures[variant.name] = failure


def run(variants=VARIANTS, recipe=RECIPE, failing=(), **seconds):
    """The outcomes, and what was told; ``seconds`` holds those of each round of a variant."""
    told, counts = Heard(), {}

    def once(variant):
        if variant.name in failing:
            raise VariantFailed("out of device memory")
        counts[variant.name] = number = counts.get(variant.name, 0) + 1
        rounds = seconds.get(variant.name)
        changes = {"step_seconds": [rounds[number - 1]] * 6} if rounds else {}
        return measured(variant.name, **changes)

    return {one.name: one for one in run_variants(variants, recipe, once, told)}, told


def test_every_variant_that_applies_runs_in_order():
    _, told = run()
    names = [name for number, name in told.began if number == 1]
    assert names == [one.name for one in VARIANTS if one.name != "one_process"]


def test_small_differences_are_run_again_backwards():
    # recording takes 5% of the step and a log 10%; data and the backward take more and are clear
    found, told = run()
    assert [name for number, name in told.began if number == 2] == ["logged", "quiet", "as_is"]
    assert not [name for number, name in told.began if number == 3]
    assert [len(found[name].runs) for name in ("as_is", "quiet", "logged", "held_batches")] == [2, 2, 2, 1]


def test_a_variant_that_fails_is_named_and_the_others_go_on():
    found, told = run(failing=("held_batches", "logged"))
    assert told.failures == {"held_batches": "out of device memory", "logged": "out of device memory"}
    assert found["held_batches"].runs == []
    assert found["micro_batch_doubled"].runs
    assert [name for number, name in told.began if number == 2] == ["quiet", "as_is"]


def test_a_variant_that_fails_in_a_later_round_keeps_its_first_run_and_is_not_tried_again():
    told, runs = Heard(), []

    def once(variant):
        runs.append(variant.name)
        if variant.name == "logged" and runs.count("logged") == 2:
            raise VariantFailed("out of device memory")
        return measured(variant.name, **({"step_seconds": [0.9, 1.2] * 3} if variant.name == "as_is" else {}))

    found = {one.name: one for one in run_variants(VARIANTS, RECIPE, once, told)}
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


NAMED = {one.name: one for one in VARIANTS}


def one_recipe(processes=1):
    return small_recipe(distributed={"processes": processes})


@pytest.fixture
def launch(tmp_path):
    """Runs a script in place of a measurement; ``FOLDER`` in it is that of the run."""

    def make(script: str) -> Launch:
        class Scripted(Launch):
            def command(self, variant, folder):
                return [sys.executable, "-c", script.replace("FOLDER", repr(str(folder)))]

        return Scripted(one_recipe(), "r.yaml", (), 6, 3, tmp_path, 0, 2)

    return make


def left(content: object) -> str:
    return f"open(FOLDER + '/measurement.json', 'w').write({json.dumps(content)!r})"


def test_what_a_process_leaves_is_read_and_its_folder_removed(launch, tmp_path):
    found = run_variant(NAMED["quiet"], launch(left({"step_seconds": [1.0, 2.0], "schedule": None})))
    assert found.step_seconds == [1.0, 2.0]
    assert list(tmp_path.iterdir()) == []


FAULTS = {
    f"{left({'failure': 'out of device memory'})}; raise SystemExit(2)": "out of device memory",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "killed, perhaps because memory ran out",
    "print('abc'); raise SystemExit('it broke')": "exit code 1: it broke",
    "raise SystemExit(7)": "exit code 7, and it said nothing",
}


def test_why_a_process_failed(launch, tmp_path):
    for script, why in FAULTS.items():
        with pytest.raises(VariantFailed, match=why):
            run_variant(NAMED["quiet"], launch(script))
        assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_neither_process_nor_folder(launch, tmp_path, monkeypatch):
    started = []
    popen = module.subprocess.Popen

    class Interrupted(popen):
        def wait(self, timeout=None):
            if not started:
                family = psutil.Process(self.pid)
                while not family.children():
                    time.sleep(0.01)
                time.sleep(0.5)  # until the child ignores the signal
                started.extend([family, *family.children()])
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(module.subprocess, "Popen", Interrupted)
    monkeypatch.setattr(exits, "_TERM_SECONDS", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])"
    with pytest.raises(KeyboardInterrupt):
        run_variant(NAMED["quiet"], launch(child))
    assert len(started) == 2
    assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []


def test_one_process_is_started_as_it_is_and_several_by_accelerate():
    alone = Launch(one_recipe(), "r.yaml", ("a.b=1",), 6, 3, Path("p"), 0, 4)
    assert alone.command(NAMED["quiet"], Path("f")) == [
        sys.executable,
        *("-m", "hf_efficient.isolate.worker", "r.yaml", "a.b=1"),
        *("--variant=quiet", "--steps=6", "--warm-up=3", "--share=1", "--folder=f"),
    ]
    several = Launch(one_recipe(2), "r.yaml", (), 6, 3, Path("p"), 0, 4)
    command = several.command(NAMED["quiet"], Path("f"))
    assert "--num_processes=2" in command
    assert command[command.index("-m") + 1 :][:2] == ["hf_efficient.isolate.worker", "r.yaml"]
    one = several.command(NAMED["one_process"], Path("f"))
    assert (one[0], one[-2]) == (sys.executable, "--share=2")
    assert (alone.threads, several.threads) == (4, 2)


def test_auto_is_a_process_per_device():
    assert Launch(one_recipe("auto"), "r", (), 6, 3, Path("p"), 3, 4).processes == 3
    assert Launch(one_recipe("auto"), "r", (), 6, 3, Path("p"), 0, 4).processes == 1
