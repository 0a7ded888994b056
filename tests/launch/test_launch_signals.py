"""Signals and the stop file, in every phase of a run of one process or two: a checkpoint, and the end."""

import signal
import subprocess
import sys

import pytest
from launched_runs import PLANTED, written

from hf_efficient.launch.exits import ended
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of
from tests.conftest import own_environment
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, None)
"""None: the stop file."""
PHASES = ("start", "data", "forward", "backward", "optimizer", "log", "evaluation", "save")
MOST_SECONDS = 180.0  # for a machine that does much else
TURNS = [(ASKED[place % 5], phase, 1 + place % 2) for place, phase in enumerate(PHASES)]
TURNS += [(ASKED[(place + 2) % 5], phase, 2 - place % 2) for place, phase in enumerate(PHASES)]
"""Every signal and the stop file with one process and with two, and so every phase."""


def test_the_turns_hold_every_pair():
    assert {(asked, processes) for asked, _, processes in TURNS} == {(one, n) for one in ASKED for n in (1, 2)}
    assert {(phase, processes) for _, phase, processes in TURNS} == {(one, n) for one in PHASES for n in (1, 2)}


@pytest.mark.parametrize(("number", "phase", "processes"), TURNS)
def test_it_saves_and_ends(tmp_path, tiny_llama_dir, number, phase, processes):
    recipe, out = written(tmp_path, tiny_llama_dir), tmp_path / "out"
    words = [f"distributed.processes={processes}", "train.max_steps=100000", "train.save_steps=3", "train.eval_steps=3"]
    words += ["train.eval_strategy=steps", "data.eval_fraction=0.2", "train.save_total_limit=2"]
    told = own_environment(PLANTED.parent, PLANTED_MARKS=str(tmp_path), PLANTED_PHASE=phase)
    command = [sys.executable, str(PLANTED), "train", str(recipe), *words]
    run = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ended(run):
        wait_for(lambda: run.poll() is not None or (tmp_path / "in").exists(), 300)
        if number is None:
            (out / "stop").touch()
        else:
            run.send_signal(number)
        (tmp_path / "asked").touch()
        _, errors = run.communicate(timeout=MOST_SECONDS)
    assert run.returncode == (130 if number == signal.SIGINT else 143), errors
    assert "Traceback" not in errors
    saved = [path.name for path in checkpoints(out) if fault_of(path, hashes=True) is None]
    if phase == "start" and number is not None:  # nothing is trained yet
        assert saved == []
        assert "--resume continues from its last checkpoint." in errors
    else:
        name = f"the file {out}/stop" if number is None else number.name
        assert f"stopped by {name} after step {saved[-1].removeprefix('checkpoint-')} of 100000; " in errors
    assert len(saved) == len(checkpoints(out))
