"""A recipe through `accelerate launch`, through `hf-efficient train` and in Python: the same run."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from hf_efficient import train
from hf_efficient.errors import DataError, OutputError
from hf_efficient.launch import build as builds
from hf_efficient.launch.command import FLAGS_ALONE
from hf_efficient.launch.exits import announce_end
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recording.stop import EndedBySignal, StopRequest, exit_code
from tests.conftest import logged_values
from tests.waiting import wait_for

ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def recipe(tiny_recipe_file) -> Path:
    return tiny_recipe_file


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def same_run(one: Path, other: Path) -> bool:
    weights, others = (load_file(folder / "adapter_model.safetensors") for folder in (one, other))
    equal = all(torch.equal(weights[name], others[name]) for name in weights)
    return equal and logged_values(one) == logged_values(other)


def test_the_command_and_python_give_the_same_run(recipe, tmp_path):
    python, out = tmp_path / "python", tmp_path / "command"
    command = run("hf-efficient", "train", str(recipe), f"output_dir={out}", cwd=tmp_path)
    assert command.returncode == 0, command.stderr
    result = run_recipe(load_recipe(recipe, [f"output_dir={python}"]))
    assert len(logged_values(python)) == 4
    assert same_run(out, python)
    assert set(result.after) == {"loss", "perplexity"}

    # The line that it printed can be copied, and is what it ran.
    printed = next(line for line in command.stdout.splitlines() if line.startswith("$ "))
    assert printed == (
        f"$ accelerate launch --quiet --config_file={FLAGS_ALONE} --num_machines=1 --num_processes=1 "
        "--mixed_precision=no --dynamo_backend=no --num_cpu_threads_per_process=1 "
        f"-m hf_efficient.train {recipe} output_dir={out}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_of_the_input_stands_alone(recipe, tmp_path, processes):
    """Neither the command before it nor what the launcher says of its processes behind it."""
    (tmp_path / "wrong.jsonl").write_text('{"messages": "hello"}\n' * 4)
    wrong = (f"data.train.0.path={tmp_path / 'wrong.jsonl'}", f"distributed.processes={processes}")
    ended = run("hf-efficient", "train", str(recipe), *wrong, cwd=tmp_path)
    assert ended.returncode == 2
    assert "accelerate" not in ended.stdout + ended.stderr
    assert [line[:7] for line in ended.stderr.splitlines()] == ["error: "]


@pytest.mark.slow
def test_a_bare_launcher_gives_the_same_run(recipe, tmp_path):
    python, out = tmp_path / "python", tmp_path / "bare"
    launch = ("accelerate", "launch", "--quiet", "-m", "hf_efficient.train")
    bare = run(*launch, str(recipe), f"output_dir={out}", cwd=tmp_path)
    assert bare.returncode == 0, bare.stderr
    run_recipe(load_recipe(recipe, [f"output_dir={python}"]))
    assert same_run(out, python)


def test_resume_and_overwrite_and_refuse(recipe, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def ran(output, *overrides):
        run_recipe(load_recipe(recipe, [f"output_dir={output}", *overrides]))
        records = [json.loads(line) for line in (output / "efficiency/steps.jsonl").read_text().splitlines()]
        return [(record["segment"], record["step"]) for record in records]

    first = [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert (ran(whole), ran(parts)) == (first, first)
    # Stopped at step 2 of 4: the schedule is that of four steps, so the run is cut off rather than shortened.
    shutil.rmtree(parts / "checkpoint-4")
    with pytest.raises(OutputError, match="already holds a run"):
        ran(parts)
    assert ran(parts, "existing_output=resume") == [*first, (1, 3), (1, 4)]
    assert same_run(parts, whole)
    assert ran(parts, "existing_output=overwrite") == first


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.learnin_rate=1", "Did you mean `learning_rate`?"),
        ("data.train.0.path=gone.jsonl", "gone.jsonl"),
        ("model.id=./no-such-model", "./no-such-model does not exist"),
        ("model.id=owner/some-model", "neither a local folder nor in the local hub cache"),
        ("adapter.target_modules=[c_attn]", "adapter.target_modules: ['c_attn'] does not fit this model"),
    ],
)
def test_a_users_mistake_is_a_sentence_and_exit_code_2(recipe, override, said, capsys):
    assert train.main([str(recipe), override]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert "error: " in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_mistake_through_the_command_and_with_its_traceback(recipe, tmp_path):
    done = run("hf-efficient", "train", str(recipe), "adapter.target_modules=[c_attn]", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "adapter.target_modules: ['c_attn'] does not fit this model" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    done = run("hf-efficient", "train", str(recipe), "model.id=./no-such-model", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "ModelError: model.id: ./no-such-model does not exist" in done.stderr
    assert "without a report" not in done.stderr


def test_a_fault_that_nobody_foresaw_keeps_its_traceback_in_a_file(recipe, tmp_path, monkeypatch, capsys):
    def broken(*arguments, **options):
        raise IndexError("index out of range in self\nsecond line")

    monkeypatch.setattr(builds, "load_base", broken)
    assert train.main([str(recipe)]) == 1
    errors = capsys.readouterr().err
    assert "error: IndexError: index out of range in self\n" in errors
    assert "Traceback" not in errors
    kept = (tmp_path / "out/efficiency/traceback.txt").read_text(encoding="utf-8")
    assert kept.startswith("Traceback")
    assert "in broken" in kept
    with pytest.raises(IndexError):
        train.main([str(recipe), "--debug"])


def test_a_mistake_does_not_occupy_the_output_directory(recipe, tmp_path):
    (tmp_path / "bad.jsonl").write_text("{\n")
    bad = f"data.train.0.path={tmp_path / 'bad.jsonl'}"
    with pytest.raises(DataError):
        run_recipe(load_recipe(recipe, [bad]))
    run_recipe(load_recipe(recipe))
    before = sorted((tmp_path / "out").rglob("*"))
    with pytest.raises(DataError):
        run_recipe(load_recipe(recipe, [bad, "existing_output=overwrite"]))
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (None, 143)])
def test_a_signal_or_the_stop_file_ends_the_whole_run_and_says_how_to_go_on(recipe, tmp_path, number, code):
    command = ["hf-efficient", "train", str(recipe), "train.max_steps=100000", "train.save_steps=100000"]
    steps = tmp_path / "out/efficiency/steps.jsonl"
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True) as run:
        wait_for(lambda: run.poll() is not None or (steps.is_file() and steps.read_text().count("\n") > 2), 120)
        if number is None:
            (tmp_path / "out/stop").touch()
        else:
            run.send_signal(number)
        _, errors = run.communicate(timeout=60)
    assert run.returncode == code
    assert "Traceback" not in errors
    saved = [path.name for path in (tmp_path / "out").glob("checkpoint-*")]
    assert len(saved) == 1
    by = f"the file {tmp_path}/out/stop" if number is None else signal.Signals(number).name
    assert re.search(
        rf"stopped by {by} after step \d+ of 100000; {saved[0]} is saved. The same command with --", errors
    )
    assert not (tmp_path / "out/stop").exists()
    last = steps.read_text().count("\n")
    time.sleep(1.5)
    assert steps.read_text().count("\n") == last  # nobody trains on


def test_what_the_user_has_to_mend_is_said_once_and_not_tried_again(started_by_us, tmp_path, monkeypatch, capsys):
    def said():
        assert train.main(["no-such-recipe"]) == 2
        return capsys.readouterr().err

    assert "no-such-recipe" in said()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # the launcher knows no better
    assert said() == ""
    (tmp_path / "status").write_text("1 0/")  # anything else may be cured by another start
    assert "no-such-recipe" in said()


@pytest.fixture
def started_by_us(tmp_path, monkeypatch):
    """Under `hf-efficient train` with a restart left; returns what is called when all is told to end."""
    variables = {"HF_EFFICIENT_STATUS_FILE": str(tmp_path / "status"), "TORCHELASTIC_MAX_RESTARTS": "1"}
    for name, value in {**variables, "TORCHELASTIC_RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(name, value)
    return lambda: announce_end(tmp_path / "status")


@pytest.mark.parametrize(("count", "code"), [("0", 0), ("1", 143)])
def test_a_process_that_is_started_after_the_signal_ends_at_once(started_by_us, tmp_path, monkeypatch, count, code):
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    monkeypatch.setattr(train, "load_recipe", None)  # it comes to nothing
    started_by_us()
    assert train.main(["any"]) == code
    assert (tmp_path / "status").read_text().startswith("143 ")


@pytest.mark.parametrize(
    ("error", "told", "code", "stated"),
    [
        (RuntimeError("Connection closed by peer [::1]:1"), True, 0, "143 0/"),
        (IndexError("planted"), False, 1, "1 0/"),
        (OutputError("no room"), True, 0, "2 0/"),
        (EndedBySignal(signal.SIGINT), True, 0, "130 0/"),
        (EndedBySignal(signal.SIGTERM), False, 143, "143 0/"),
    ],
)
def test_however_a_process_ends_that_is_told_to_it_is_not_started_again(
    started_by_us, tmp_path, monkeypatch, error, told, code, stated
):
    def fails(recipe, flags):
        if told:
            started_by_us()
        raise error

    monkeypatch.setattr(train, "load_recipe", lambda path, overrides: None)
    monkeypatch.setattr(train, "_run", fails)
    assert train.main(["any"]) == code
    assert (tmp_path / "status").read_text() == stated


@pytest.mark.parametrize(
    ("number", "late", "code"),
    [(signal.SIGTERM, 80.0, 143), (signal.SIGUSR1, 80.0, 143), (signal.SIGUSR2, 80.0, 143), (signal.SIGINT, 51.0, 130)],
)
def test_a_training_that_does_not_stop_is_ended_by_a_late_signal(monkeypatch, number, late, code):
    request = StopRequest()
    monkeypatch.setattr(train, "stop_request", lambda: request)
    now = iter([50.0, late - 0.2, late])
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=lambda: next(now)))
    with pytest.raises(EndedBySignal):  # no training under way
        train._end(number, None)
    request.heard = True
    train._end(number, None)
    assert (request.asked, request.number, request.words) == (True, number, number.name)
    train._end(number, None)
    with pytest.raises(EndedBySignal) as ended:
        train._end(number, None)
    assert exit_code(ended.value.args[0]) == code


def test_the_stop_file_is_taken_once(tmp_path):
    request = StopRequest()
    request.look(tmp_path)
    assert not request.asked
    (tmp_path / "stop").touch()
    request.look(tmp_path)  # within a second of the last look
    assert not request.asked
    request._looked = 0.0
    request.look(tmp_path)
    assert (request.asked, request.words, exit_code(request.number)) == (True, f"the file {tmp_path / 'stop'}", 143)
    assert not (tmp_path / "stop").exists()


def test_the_current_folder_takes_no_package_s_place_and_a_signal_waits(tmp_path):
    for name in ("yaml", "psutil", "datasets"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    program = [sys.executable, "-m", "hf_efficient.train", "--help"]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signal_during_the_imports_ends_the_run(monkeypatch, capsys, started_by_us):
    monkeypatch.setattr("hf_efficient.early.arrived", [signal.SIGINT])
    monkeypatch.setattr(train, "load_recipe", None)  # it comes to nothing
    assert train.main(["any"]) == 130
    assert "The run was ended by a signal." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "code", "said"), [(0, 2, "error: why\n"), (1, 2, "error: why\n"), (1, 143, "")])
def test_under_a_bare_launcher_one_process_says_why(tmp_path, rank, code, said):
    """Of several that fail alike rank 0 speaks, and is the first to end; another only where rank 0 has not failed."""
    leave = f"import hf_efficient.train as train; train._WAIT_SECONDS = 0.2; train._leave({code}, 'why')"
    command = ["env", "-u", "HF_EFFICIENT_STATUS_FILE", f"LOCAL_RANK={rank}", sys.executable, "-c", leave]
    assert run(*command, cwd=tmp_path).stderr == said


@pytest.mark.slow
def test_a_process_that_waits_for_rank_0_ends_with_it_in_silence(tmp_path):
    leave = "import hf_efficient.train as train; print('waits', flush=True); train._leave(2, 'why')"
    environment = {**os.environ, "LOCAL_RANK": "1"}
    with subprocess.Popen([sys.executable, "-c", leave], env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == -signal.SIGTERM


EXITS = """
import sys
import torch, torch.distributed as dist
import hf_efficient.launch.run as run
from hf_efficient import train

def trains(recipe, listener):
    dist.init_process_group("gloo")
    groups = [dist.new_group(backend="gloo") for _ in range(3)]
    for group in groups:
        dist.all_reduce(torch.ones(1000), group=group)

run.run_recipe = trains
code = train.main(sys.argv[1:])
sys.exit(code or dist.is_initialized())
"""


@pytest.mark.slow
def test_processes_leave_their_group_before_they_end(recipe, tmp_path):
    """Else threads of gloo may be alive when the interpreter ends, which is aborted then: a race, so several times."""
    (program := tmp_path / "exits.py").write_text(EXITS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", str(program), str(recipe), "distributed.processes=2"]
    for _ in range(3):
        done = run(*command, cwd=tmp_path)
        assert (done.returncode, "terminate called" in done.stderr) == (0, False), done.stderr
