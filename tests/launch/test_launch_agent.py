"""accelerate's launcher in a process of ours: what it says of a rank that was killed, and what SIGTERM does to it."""

import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from hf_efficient.launch import agent
from hf_efficient.launch.agent import Failure, agent_command, agent_environment, failure_in
from tests.conftest import own_environment
from tests.waiting import wait_for

WORKER = """
import os, signal, time
rank, count = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open(f"launch.{rank}.{count}", "w") as file:
    file.write(os.environ["HF_EFFICIENT_LAUNCH"])
signal.signal(signal.SIGTERM, lambda *_: open(f"told.{rank}", "w").close())
open(f"started.{rank}.{count}", "w").close()
if rank == "1" and os.environ.get("DIES"):
    while not os.path.exists(f"started.0.{count}"):  # it hears of the other's end only once it listens
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists("end"):
    time.sleep(0.05)
"""


def launch(folder: Path, **environment: str) -> subprocess.Popen[bytes]:
    (folder / "worker.py").write_text(WORKER)
    command = ["accelerate", "launch", "--multi_gpu", "--num_machines=1", "--num_processes=2", "--mixed_precision=no"]
    command += ["--dynamo_backend=no", "--max_restarts=1", "--main_process_port=0", "worker.py"]
    told = own_environment(**agent_environment(folder), **environment)
    return subprocess.Popen(agent_command(command), cwd=folder, env=told, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_rank_that_is_killed_in_every_start_is_named(tmp_path):
    process = launch(tmp_path, DIES="1")
    try:
        # Rank 0 hears of it by SIGTERM, which ends nothing here.
        wait_for((tmp_path / "told.0").exists, 60)
        (tmp_path / "end").touch()
        assert process.wait(60) == 1
    finally:
        process.kill()
    assert (tmp_path / "started.1.1").exists()
    first, second = ((tmp_path / f"launch.1.{count}").read_text() for count in (0, 1))
    assert first == second
    assert len(first) == 32
    assert failure_in(tmp_path) == Failure(rank=1, exit_code=-signal.SIGKILL, starts=2)


@pytest.mark.slow
def test_sigterm_leaves_it_to_the_processes_to_end(tmp_path):
    process = launch(tmp_path)
    try:
        wait_for(lambda: all((tmp_path / f"started.{rank}.0").exists() for rank in (0, 1)), 60)
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        assert not (tmp_path / "told.0").exists()
        (tmp_path / "end").touch()
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert failure_in(tmp_path) is None


def test_sigterm_stays_ours_whatever_torch_sets(monkeypatch):
    """torch 2.6 to 2.8 set their handler for it at every start, unasked."""
    api = SimpleNamespace(_terminate_process_handler=lambda number, frame: heard.append(("torch", number)))
    heard: list[tuple[str, int]] = []
    monkeypatch.setattr(agent, "_ends_without_children", lambda number, frame: heard.append(("ours", number)))
    agent._keep_sigterm(api)
    for number in (signal.SIGTERM, signal.SIGINT):
        api._terminate_process_handler(number, None)
    assert heard == [("ours", signal.SIGTERM), ("torch", signal.SIGINT)]


def test_what_torch_sets_is_looked_up_in_its_module():
    from torch.distributed.elastic.multiprocessing.api import PContext

    assert "_terminate_process_handler" in PContext.start.__code__.co_names


def test_how_it_ended_in_words():
    assert Failure(1, -9).how == "SIGKILL"
    assert Failure(1, -9, 3).how == "SIGKILL, the last of 3 starts"
    assert Failure(0, 1).how == "exit code 1"
    assert [Failure(0, code).was_killed for code in (-9, -11, -15, 0, 1)] == [True, True, False, False, False]


def test_only_accelerate_itself_is_replaced():
    replaced = agent_command(["/bin/accelerate", "launch", "-m", "x"])
    assert replaced[1:] == ["-m", "hf_efficient.launch.agent", "launch", "-m", "x"]
    under_nsight = ["nsys", "profile", "accelerate", "launch"]
    assert agent_command(under_nsight) == under_nsight
