"""``hf-efficient train``: what becomes of the launched command."""

from __future__ import annotations

import importlib
import sys

import pytest

from hf_efficient.cli.recipes import launch_page
from hf_efficient.cli.run_command import run_command
from hf_efficient.cli.train import train
from hf_efficient.errors import OutputError, RecipeError, SetupError
from hf_efficient.launch.output import OutputPlan
from hf_efficient.recipe.load import load_recipe

run_command_module = importlib.import_module("hf_efficient.cli.run_command")
TELLS_TWO = "import os, pathlib; pathlib.Path(os.environ['HF_EFFICIENT_STATUS_FILE']).write_text('2')"


@pytest.mark.parametrize(
    ("code", "ends_with", "told"),
    [
        ("pass", 0, False),
        (f"{TELLS_TWO}; raise SystemExit(1)", 2, False),
        ("raise SystemExit(1)", 1, True),  # as the launcher ends whose worker was killed
        ("import os; os.kill(os.getpid(), 9)", 137, True),
    ],
)
def test_a_run_that_ends_without_a_word_is_told_of(capsys, code, ends_with, told):
    assert run_command([sys.executable, "-c", code], "outputs/a run") == ends_with
    assert capsys.readouterr().err == (
        f"error: the training ended without saying why (exit code {ends_with}): it was killed, for want of memory "
        "perhaps, or crashed outside Python. `hf-efficient report 'outputs/a run'` shows what it recorded; the same "
        "command with --resume goes on from its last checkpoint.\n"
        if told
        else ""
    )


TELLS_KILLED = """
import os, pathlib
pathlib.Path(os.environ["HF_EFFICIENT_STATUS_FILE"]).write_text("143 1/29500")
failed = '{"rank": 1, "exit_code": -9, "starts": 3}'
pathlib.Path(os.environ["HF_EFFICIENT_FAILURE_FILE"]).write_text(failed)
raise SystemExit(1)
"""


def test_a_rank_that_was_killed_is_named_and_not_the_one_that_was_ended_for_it(capsys):
    assert run_command([sys.executable, "-c", TELLS_KILLED], "out") == 137
    said = capsys.readouterr().err
    assert said.startswith("error: rank 1 ended without saying why (SIGKILL, the last of 3 starts): it was killed, ")


def test_a_run_that_stopped_and_whose_launcher_ended_well(capsys):
    stops = "import os, pathlib; pathlib.Path(os.environ['HF_EFFICIENT_STATUS_FILE']).write_text('143 0/29500')"
    assert run_command([sys.executable, "-c", stops], "out") == 143
    assert capsys.readouterr().err == ""


DEAF = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    time.sleep(0.5)
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


def test_a_run_that_hangs_is_ended_by_the_second_signal(monkeypatch, capsys):
    monkeypatch.setattr("hf_efficient.cli.run_command._PATIENCE_OTHERWISE_SECONDS", 0.3)
    monkeypatch.setattr("hf_efficient.launch.exits._TERM_SECONDS", 0.5)
    assert run_command([sys.executable, "-c", DEAF], "out") == 143
    assert capsys.readouterr().err == "error: the run did not end by the first signal, and was killed.\n"


def test_signals_that_come_together_are_no_impatience(monkeypatch, tmp_path):
    passed = []
    monkeypatch.setattr(run_command_module, "_pass_on", lambda launcher, received, status: passed.append(received))
    signals = run_command_module._Signals(1, tmp_path / "status")
    for number, now in ((15, 100.0), (2, 109.9), (15, 129.9)):
        signals.pass_on(number, now)
    assert signals.insisted == 0
    signals.pass_on(15, 130.0)
    assert (signals.insisted, passed) == (15, [15, 2, 15, 15])


def test_a_person_who_presses_again_is_impatient_sooner_than_a_cluster(monkeypatch, tmp_path):
    monkeypatch.setattr(run_command_module, "_pass_on", lambda launcher, received, status: None)
    signals = run_command_module._Signals(1, tmp_path / "status")
    signals.pass_on(2, 100.0)
    signals.pass_on(2, 110.0)
    assert signals.insisted == 2


FAKE_NSYS = """\
#!/bin/sh
printf '%s\\n' "$@" > "$NSYS_ARGUMENTS"
shift
while [ "${1#--}" != "$1" ]; do shift; done
exec "$@"
"""
FAKE_ACCELERATE = """\
#!/bin/sh
printf '%s\\n' "$@" > "$ACCELERATE_ARGUMENTS"
exit 0
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"name: t\nmodel: {{id: m}}\ndata: {{train: [{{path: a}}]}}\noutput_dir: {tmp_path / 'out'}\n", encoding="utf-8"
    )
    return path


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def test_a_launch_under_nsight(recipe_file, tmp_path, monkeypatch, capsys):
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "nsys", FAKE_NSYS)
    program(programs / "accelerate", FAKE_ACCELERATE)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("NSYS_ARGUMENTS", str(tmp_path / "nsys.txt"))
    monkeypatch.setenv("ACCELERATE_ARGUMENTS", str(tmp_path / "accelerate.txt"))
    monkeypatch.setattr("hf_efficient.launch.command._accelerate", lambda: "accelerate")
    with pytest.raises(SystemExit) as ended:
        train(str(recipe_file), ["train.max_steps=9"], nsys=True)
    assert ended.value.code == 0
    told = (tmp_path / "nsys.txt").read_text().splitlines()
    assert told[0] == "profile"
    assert f"--output={tmp_path / 'out' / 'efficiency' / 'profile' / 'nsys'}" in told
    launched = (tmp_path / "accelerate.txt").read_text().splitlines()
    assert launched[0] == "launch"
    assert launched[-4:] == [
        str(recipe_file),
        "train.max_steps=9",
        "efficiency.profile.nvtx=true",
        "efficiency.profile.capture={}",
    ]
    assert capsys.readouterr().out.startswith("$ nsys profile --trace=cuda,nvtx")


def test_nsight_that_is_not_here(recipe_file, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match="--ncu: Nsight Compute is not installed here"):
        train(str(recipe_file), [], ncu=True)
    with pytest.raises(SetupError, match="leave one of them out"):
        train(str(recipe_file), [], nsys=True, ncu=True)


def test_a_capture_after_the_last_step_is_refused(recipe_file):
    with pytest.raises(RecipeError, match=r"capture\.after_step: waits for step 6, but `train.max_steps` is 4"):
        train(str(recipe_file), ["train.max_steps=4"], nsys=True, dry_run=True)


def test_a_checkpoint_of_other_processes_is_told_before_any_is_started(recipe_file, tmp_path, monkeypatch):
    checkpoint = tmp_path / "out" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    for name in ("rng_state_0.pth", "rng_state_1.pth"):
        (checkpoint / name).touch()
    monkeypatch.setattr(
        "hf_efficient.launch.output.plan_output", lambda recipe: OutputPlan(tmp_path / "out", checkpoint)
    )
    with pytest.raises(OutputError, match=r"processes: 1 train, but checkpoint-4 was written by 2"):
        train(str(recipe_file), [], resume=True)
    with pytest.raises(OutputError, match=r"strategy: is fsdp2, but checkpoint-4 was written by whole models"):
        train(str(recipe_file), ["distributed.strategy=fsdp2", "distributed.processes=2"], resume=True)


def test_processes_that_do_not_divide_the_global_batch(recipe_file, monkeypatch):
    """``auto`` is counted here, before anything is launched."""
    for place in ("hf_efficient.facts.environment", "hf_efficient.cli.recipes"):
        monkeypatch.setattr(f"{place}.accelerator_count", lambda: 3)
    batch = ["distributed.processes=auto", "distributed.global_batch_size=64"]
    with pytest.raises(RecipeError, match=r"64, which 24 sequences at a time .* 8 x 3 processes\) do not divide"):
        train(str(recipe_file), batch, dry_run=True)
    with pytest.raises(RecipeError, match="24 sequences at a time"):
        launch_page(load_recipe(recipe_file, batch), "r.yaml", batch, as_json=False)
