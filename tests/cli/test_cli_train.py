"""``hf-efficient train``: what becomes of the launched command."""

from __future__ import annotations

import sys

import pytest

from hf_efficient.cli.train import run_command, train
from hf_efficient.errors import RecipeError, SetupError

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
