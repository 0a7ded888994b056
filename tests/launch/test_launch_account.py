"""The account of a recipe's run, as a process of its own and inside one."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from hf_efficient.accounting.account import SCHEMA, account_of, read_account
from hf_efficient.errors import SetupError
from hf_efficient.facts import prices
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.account import RunAccount
from tests.conftest import own_environment
from tests.launch.notes import Notes

SLOW = """
import atexit, sys, time
from hf_efficient.trainer import EfficientTrainer
forward = EfficientTrainer.compute_loss
slept, around = [], []
def slow(self, *args, **kwargs):
    if self._recorder.timeline is None:  # the simulation of the plan
        return forward(self, *args, **kwargs)
    if self.state.global_step == {raising}:
        raise RuntimeError("planted")
    before = time.perf_counter()
    loss = forward(self, *args, **kwargs)
    with self._recorder.phase("forward"):
        between = time.perf_counter()
        time.sleep(0.1)
        slept.append((time.perf_counter() - between) * self.model.training)
    around.append((time.perf_counter() - before) * self.model.training)
    return loss
EfficientTrainer.compute_loss = slow
atexit.register(lambda: print("forward:", sum(slept), sum(around), file=sys.stderr))
from hf_efficient.train import main
sys.exit(main())
"""


@pytest.fixture
def recipe(tiny_recipe_file) -> Path:
    return tiny_recipe_file


EIGHT = ("train.max_steps=8", "train.eval_strategy=steps", "train.eval_steps=4", "train.save_steps=4")


def run(recipe: Path, *more: str, raising: int = -1) -> tuple[subprocess.CompletedProcess[str], float]:
    """A run in a process of its own, and how long the process lived."""
    command = [sys.executable, "-c", SLOW.format(raising=raising), str(recipe), *EIGHT, "efficiency.plan=true", *more]
    before = time.monotonic()
    done = subprocess.run(command, env=own_environment(), capture_output=True, text=True, timeout=300)
    return done, time.monotonic() - before


def forward_seconds(done: subprocess.CompletedProcess[str]) -> tuple[float, float]:
    """What ``SLOW`` slept in the forwards of the training, and the time around them, by its own clock."""
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("forward: "))
    slept, around = line.split()[1:]
    return float(slept), float(around)


def account(output: Path, unattributed_share: float = 0.02) -> RunAccount:
    """What run.json holds: valid by the schema, and the same that the records give."""
    folder = output / "efficiency"
    jsonschema.validate(json.loads((folder / "run.json").read_text()), json.loads(SCHEMA.read_text()))
    found = read_account(folder / "run.json")
    assert account_of(folder) == found
    for part in (found.time, *found.time.processes):
        assert math.isclose(math.fsum(part.phase_seconds.values()) + part.unattributed_seconds, part.wall_seconds)
        assert 0 <= part.unattributed_seconds <= unattributed_share * part.wall_seconds
    return found


@pytest.mark.slow
def test_a_run_that_fails_and_is_resumed(recipe, tmp_path):
    rates = ("cost.price_usd_per_hour=3.6", "cost.grid=FR")  # a tenth of a cent a second
    failed, lived = run(recipe, *rates, raising=6)
    assert failed.returncode == 1
    assert "planted" in failed.stderr
    first = account(tmp_path / "out")
    assert (first.ended, first.error, first.steps.count) == ("error", "RuntimeError: planted", 6)
    assert first.time.wall_seconds <= lived

    done, lived_again = run(recipe, *rates, "--resume")
    assert done.returncode == 0, done.stderr
    found = account(tmp_path / "out")
    assert (found.ended, found.recorded_by) == ("done", "recipe")
    before, after = found.time.processes
    assert before == first.time.processes[0]
    assert (after.steps, after.first_step, after.last_step) == (4, 5, 8)
    assert after.began_at_seconds == 0.0
    assert after.wall_seconds <= lived_again
    assert found.time.wall_seconds == pytest.approx(before.wall_seconds + after.wall_seconds)
    slept, around = (sum(parts) for parts in zip(forward_seconds(failed), forward_seconds(done), strict=True))
    assert 1.0 <= slept <= around <= found.time.phase_seconds["forward"] < around + 0.5  # ten steps
    for phase in ("imports", "model_load", "data_preparation", "trainer_setup", "evaluation", "checkpointing"):
        assert after.phase_seconds[phase] > 0, phase
    assert after.phase_seconds["imports"] > 0.5
    assert after.process_start_from == "kernel"
    assert "The run took" in done.stdout
    assert "page " in done.stdout

    assert found.money.cost_usd == pytest.approx(found.time.wall_seconds * 0.001, rel=1e-12)
    assert math.fsum(found.money.phase_usd.values()) == pytest.approx(found.money.cost_usd, abs=1e-9)
    assert (found.money.price_source, found.money.estimated) == ("set by the user", False)
    assert found.energy.grid_source.startswith("France 2023")
    taken = [json.loads(line) for line in (tmp_path / "out/efficiency/system.jsonl").read_text().splitlines()]
    if [part.source for part in found.energy.parts] == ["estimate"]:  # one counter, from 0 in each process
        told = [[one["joules"]["CPU"] for one in taken if one["process"] == number] for number in (0, 1)]
        assert found.energy.joules == pytest.approx(sum(counter[-1] - counter[0] for counter in told), abs=1e-3)
    assert first.energy.joules < found.energy.joules
    times = [[one["at_seconds"] for one in taken if one["process"] == number] for number in (0, 1)]
    covered = sum(at[-1] - at[0] for at in times)  # the last sample may follow the end of the account
    (part,) = found.energy.parts
    assert part.covered_seconds == pytest.approx(covered, abs=1e-3)
    assert part.missing_seconds == pytest.approx(max(0.0, found.time.wall_seconds - covered), abs=1e-3)


@pytest.mark.slow
def test_runs_one_after_another_in_one_process(recipe, tmp_path):
    outputs = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]
    for output in outputs:
        notes = Notes()
        existing = "resume" if output.exists() else "refuse"
        run_recipe(load_recipe(recipe, [*EIGHT, f"output_dir={output}", f"existing_output={existing}"]), notes)
        assert notes.told == read_account(output / "efficiency/run.json")
    one, three = account(tmp_path / "a", 0.3).time.processes
    (two,) = account(tmp_path / "b", 0.3).time.processes
    assert one.began_at_seconds + one.wall_seconds <= two.began_at_seconds
    assert two.began_at_seconds + two.wall_seconds <= three.began_at_seconds
    assert (one.steps, two.steps, three.steps) == (8, 8, 0)
    assert two.phase_seconds.get("imports", 0.0) == 0.0


def test_a_provider_that_does_not_list_the_gpu_is_told_with_its_key(recipe, monkeypatch):
    real = prices.price_facts
    monkeypatch.setattr(prices, "price_facts", lambda known, _name, gpus: real(known, "NVIDIA H200", gpus))
    flag = "cost.price_from=lambda"
    told = f"command line: {flag}: cost.price_from: lambda has no known on_demand price for H200; known: A10"
    with pytest.raises(SetupError, match=f"^{told}.*Set cost.price_usd_per_hour to what you pay.$"):
        run_recipe(load_recipe(recipe, [flag]))
