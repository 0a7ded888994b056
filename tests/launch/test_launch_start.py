"""The records of a start: a kill while model and data are read, a mistake, a run that lies there already."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hf_efficient.accounting.account import load_run
from hf_efficient.errors import ModelError, OutputError
from hf_efficient.launch import build as builds
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.output import OutputPlan, plan_output
from hf_efficient.launch.records import start_folder
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from tests.conftest import own_environment

STUCK = """
import sys, time
from hf_efficient.launch import build
build.load_base = lambda recipe: time.sleep(600)
from hf_efficient.train import main
sys.exit(main())
"""


@pytest.fixture
def recipe(tiny_recipe_file) -> Path:
    return tiny_recipe_file


@contextlib.contextmanager
def a_start(recipe: Path, records: Path, *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is in the load of its model, and says so in its records."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-c", STUCK, str(recipe), *more], env=own_environment(), **quiet)
    try:
        deadline = time.monotonic() + 120
        while not _loads(records, process.pid):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _loads(records: Path, pid: int) -> bool:
    """Whether the last word of these records is of this process, in the load of its model."""
    lines = []
    for text in records.read_text().splitlines() if records.exists() else ():
        with contextlib.suppress(ValueError):  # one that is being written
            lines.append(json.loads(text))
    own = [line["process"] for line in lines if line["kind"] == "process" and line["pid"] == pid]
    return any(line["process"] in own[-1:] and line.get("open_phase") == "model_load" for line in lines)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def run(recipe: Path, *overrides: str) -> None:
    run_recipe(load_recipe(recipe, ["train.max_steps=2", "efficiency.plan=true", *overrides]))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_a_start_that_is_killed_keeps_its_account_and_counts_when_it_is_resumed(recipe, tmp_path):
    out = tmp_path / "out"
    with a_start(recipe, out / "efficiency/starting/spans.jsonl") as process:
        kill(process)
    lost = load_run(out)
    (died,) = lost.time.processes
    assert (lost.ended, died.open_phase, lost.recorded_by) == ("died", "model_load", "recipe")
    assert died.phase_seconds["imports"] > 0.5

    hours = died.wall_seconds / 3600
    with pytest.raises(OutputError, match=r"budget\.hours"):  # it is spent already
        run(recipe, "existing_output=resume", f"budget.hours={hours}")
    with a_start(recipe, out / "efficiency/starting/spans.jsonl", "--resume") as process:
        kill(process)
    assert load_run(out).time.processes[0].wall_seconds == died.wall_seconds

    run(recipe, "existing_output=resume")
    found = load_run(out)
    first, second, third = found.time.processes
    assert first.wall_seconds == died.wall_seconds
    assert (found.ended, third.steps, second.open_phase) == ("done", 2, "model_load")
    assert not (out / "efficiency/starting").exists()
    assert (out / "efficiency/system.jsonl").is_file()


@pytest.mark.slow
def test_an_old_run_stays_whole_until_its_successor_is_ready(recipe, tmp_path):
    out = tmp_path / "out"
    run(recipe)
    before = content(out)
    with a_start(recipe, out / "efficiency/starting/spans.jsonl", "--overwrite") as process:
        kill(process)
    apart = {name: text for name, text in content(out).items() if not name.startswith("efficiency/starting/")}
    assert apart == before
    assert load_run(out).ended == "done"
    assert load_run(out / "efficiency/starting").time.processes[0].open_phase == "model_load"

    run(recipe, "existing_output=resume", "train.max_steps=3")  # the old run, which the lost start was no part of
    assert [one.steps for one in load_run(out).time.processes] == [2, 1]
    assert not (out / "efficiency/starting").exists()


@pytest.mark.slow
def test_a_resumed_start_that_is_killed_is_in_the_account_of_its_run(recipe, tmp_path):
    out = tmp_path / "out"
    run(recipe)
    with a_start(recipe, out / "efficiency/spans.jsonl", "--resume", "train.max_steps=3") as process:
        kill(process)
    found = load_run(out)
    assert (found.ended, [one.steps for one in found.time.processes]) == ("died", [2, 0])
    assert found.time.processes[1].open_phase == "model_load"
    assert not (out / "efficiency/starting").exists()


@pytest.mark.slow
def test_a_signal_leaves_the_account_of_a_start_which_is_in_nobodys_way(recipe, tmp_path):
    out = tmp_path / "out"
    with a_start(recipe, out / "efficiency/starting/spans.jsonl") as process:
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    found = load_run(out)
    assert (found.ended, found.error) == ("error", "EndedBySignal: SIGTERM")
    run(recipe)
    found = load_run(out)
    assert (found.ended, len(found.time.processes)) == ("done", 1)
    written = ["diagnosis.json", "plan.json", "recipe.resolved.yaml", "report.html", "run.json"]
    assert names(out / "efficiency") == [*written, "spans.jsonl", "steps.jsonl", "system.jsonl"]


def test_a_mistake_that_is_found_after_the_records_opened_leaves_nothing(recipe, tmp_path, monkeypatch):
    opened = []

    def broken(recipe):
        opened.append(names(Path(recipe.output_dir) / "efficiency/starting"))
        raise ModelError("model.id: planted")

    monkeypatch.setattr(builds, "load_base", broken)
    for _ in range(2):
        with pytest.raises(ModelError, match="planted"):
            run(recipe)
        assert names(tmp_path / "out") == [".hf_efficient.lock"]
    assert opened == [["spans.jsonl", "system.jsonl"]] * 2


@pytest.mark.slow
def test_a_mistake_leaves_the_run_that_it_would_have_replaced(recipe, tmp_path, monkeypatch):
    run(recipe)
    before = content(tmp_path / "out")
    monkeypatch.setattr(builds, "load_base", lambda recipe: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(recipe, "existing_output=overwrite")
    assert content(tmp_path / "out") == before
    assert not (tmp_path / "out/efficiency/starting").exists()


def test_records_that_no_recipe_left_are_moved_aside(recipe, tmp_path):
    folder = tmp_path / "out/efficiency"
    folder.mkdir(parents=True)
    (folder / "spans.jsonl").write_text("another's\n")
    run(recipe)
    assert (folder / "previous/1/spans.jsonl").read_text() == "another's\n"
    assert len(load_run(tmp_path / "out").time.processes) == 1


def test_a_run_without_records_opens_none(recipe, tmp_path):
    seen = []

    class Listener(RunListener):
        def stage(self, title: str, detail: str = "") -> None:
            seen.append((title, detail, (tmp_path / "out/efficiency").exists()))

    run_recipe(load_recipe(recipe, ["efficiency.record_steps=false", "train.eval_steps=4"]), Listener())
    assert (seen[0][0], seen[0][2]) == ("Recipe", False)  # a setting without effect is told at the start
    assert "train.eval_steps: has no effect" in seen[0][1]
    assert names(tmp_path / "out/efficiency") == ["recipe.resolved.yaml"]


def test_where_a_start_is_recorded(recipe, tmp_path):
    out = tmp_path / "out"
    new, checkpoint = OutputPlan(out), OutputPlan(out, out / "checkpoint-2")
    folder = out / "efficiency"
    assert [start_folder(plan) for plan in (new, checkpoint)] == [folder / "starting"] * 2
    folder.mkdir(parents=True)
    (folder / "steps.jsonl").touch()
    assert start_folder(new) == folder / "starting"
    assert start_folder(checkpoint) == folder
    assert start_folder(OutputPlan(out, tmp_path / "other/checkpoint-2")) == folder / "starting"
    assert start_folder(OutputPlan(out, replaces=True, keeps_records=True)) == folder


def test_only_a_resumed_start_goes_on_with_the_records_of_a_lost_one(recipe, tmp_path):
    (tmp_path / "out/efficiency/starting").mkdir(parents=True)
    (tmp_path / "out/efficiency/starting/spans.jsonl").touch()
    plans = [plan_output(load_recipe(recipe, [f"existing_output={how}"])) for how in ("refuse", "overwrite", "resume")]
    assert [plan.continues for plan in plans] == [False, False, True]
    assert plans[2].remark == "the last start never came to train: what it has spent counts"
