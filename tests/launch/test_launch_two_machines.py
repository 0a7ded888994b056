"""A recipe on two machines, each with a network of its own: they meet, train, and notice when one is cut off."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from two_machines import can_make_machines, two_machines
from waiting import wait_for

from hf_efficient.launch.exits import ended
from tests.conftest import own_environment

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not can_make_machines(), reason="needs root and network namespaces")]

RECIPE = """
name: two-machines
model: {{id: {model}, dtype: float32}}
data: {{train: [{{path: {chats}}}]}}
adapter: {{method: lora, r: 4}}
train:
  {{max_length: 64, per_device_train_batch_size: 2, gradient_checkpointing: false, max_steps: {steps}, bf16: false,
   logging_steps: 1, save_steps: {save}, report_to: none}}
distributed: {{nodes: 2, processes: 1, strategy: ddp, max_restarts: {restarts}}}
efficiency: {{plan: false}}
output_dir: {output}
"""
PLANTED = Path(__file__).with_name("planted.py")
STOPS_WITHIN_SECONDS = 60.0
_STARTS_WITHIN_SECONDS = 240.0


@pytest.fixture
def launched(tmp_path, tiny_llama_dir, chats_jsonl, monkeypatch):
    """Starts the recipe on both machines."""
    monkeypatch.setenv("PYTHONPATH", own_environment(PLANTED.parent)["PYTHONPATH"])
    started: list[subprocess.Popen[bytes]] = []

    def start(machines, steps, *, save=1_000_000, restarts=0):
        path = tmp_path / "recipe.yaml"
        said = {"steps": steps, "save": save, "restarts": restarts, "output": tmp_path / "out"}
        path.write_text(RECIPE.format(model=tiny_llama_dir, chats=chats_jsonl, **said))
        for node in (0, 1):
            program = [sys.executable, str(PLANTED), "train", str(path)]
            place = [f"--node-rank={node}", f"--main-address={machines.address}:29611"]
            started.append(machines.start(node, [*program, *place], tmp_path, tmp_path / f"log{node}.txt"))
        return started

    yield start
    for process in started:
        with ended(process):
            pass


def test_they_train_together(launched, tmp_path):
    with two_machines() as machines:
        codes = [one.wait(_STARTS_WITHIN_SECONDS) for one in launched(machines, 3)]
    logs = [(tmp_path / f"log{node}.txt").read_text(errors="replace") for node in (0, 1)]
    assert codes == [0, 0], logs
    assert steps_of(tmp_path / "out") == [[1, 2, 3], [1, 2, 3]]


def steps_of(out):
    """Of each rank, as its records tell them."""
    texts = [(out / "efficiency" / name).read_text() for name in ("steps.jsonl", "steps.rank1.jsonl")]
    return [[json.loads(line)["step"] for line in text.splitlines()] for text in texts]


def test_a_process_of_the_second_is_killed(launched, tmp_path, monkeypatch):
    """Only its own agent counts that as a restart; both go on from the same checkpoint."""
    monkeypatch.setenv("PLANTED", "1:4:1:kill")
    monkeypatch.setenv("PLANTED_MARKS", str(tmp_path))
    with two_machines() as machines:
        codes = [one.wait(_STARTS_WITHIN_SECONDS) for one in launched(machines, 5, save=2, restarts=1)]
    logs = [(tmp_path / f"log{node}.txt").read_text(errors="replace") for node in (0, 1)]
    assert codes == [0, 0], logs
    assert "the launcher started the processes again" in logs[0]
    assert "resumed from checkpoint-2, to" in logs[0]
    of_the_first, of_the_second = steps_of(tmp_path / "out")
    assert of_the_first == [1, 2, 3, 3, 4, 5]
    assert of_the_second[-3:] == [3, 4, 5]  # of what it did before, not all was written


def test_one_is_cut_off_in_the_middle(launched, tmp_path):
    """Both stop, each for want of the other, and say so."""
    with two_machines() as machines:
        processes = launched(machines, 1_000_000)
        theirs = tmp_path / "out/efficiency/steps.rank1.jsonl"
        wait_for(lambda: theirs.is_file() and theirs.stat().st_size > 0, _STARTS_WITHIN_SECONDS)
        machines.cut()
        began = time.monotonic()
        codes = [one.wait(STOPS_WITHIN_SECONDS - (time.monotonic() - began)) for one in processes]
    logs = [(tmp_path / f"log{node}.txt").read_text(errors="replace") for node in (0, 1)]
    assert codes == [1, 1], logs
    assert "error: machine 1 (" in logs[0]
    assert "has not been heard of for" in logs[0]
    assert f"error: machine 0 ({machines.address}) has not answered for" in logs[1]
