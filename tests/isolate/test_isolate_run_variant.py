"""Processes of a variant: what they leave, what they say when they fail, and that none outlives its variant."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from hf_efficient.isolate import experiment as module
from hf_efficient.isolate.experiment import Launch, VariantFailed, run_variant
from hf_efficient.isolate.variants import VARIANTS
from hf_efficient.launch import exits as family
from hf_efficient.recipe.schema import Recipe

NAMED = {one.name: one for one in VARIANTS}


def recipe(processes=1) -> Recipe:
    return Recipe(
        name="r",
        model={"id": "m"},
        data={"train": [{"path": "x"}]},
        distributed={"processes": processes},
        output_dir="o",
    )


class Scripted(Launch):
    """Runs a script in place of a measurement; ``FOLDER`` in it is that of the run."""

    script = ""

    def command(self, variant, folder):
        return [sys.executable, "-c", self.script.replace("FOLDER", repr(str(folder)))]


@pytest.fixture
def launch(tmp_path):
    def make(script: str) -> Launch:
        made = Scripted(recipe(), "r.yaml", (), 6, 3, tmp_path, 0, 2)
        object.__setattr__(made, "script", script)
        return made

    return make


def left(content: object) -> str:
    return f"open(FOLDER + '/measurement.json', 'w').write({json.dumps(content)!r})"


def test_what_a_process_leaves_is_read_and_its_folder_removed(launch, tmp_path):
    found = run_variant(NAMED["quiet"], launch(left({"step_seconds": [1.0, 2.0], "schedule": None})))
    assert found.step_seconds == [1.0, 2.0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"{left({'failure': 'out of device memory'})}; raise SystemExit(2)", "out of device memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed, for want of memory perhaps"),
        ("print('abc'); raise SystemExit('it broke')", "exit code 1: it broke"),
        ("raise SystemExit(7)", "exit code 7, and it said nothing"),
    ],
)
def test_why_a_process_failed(launch, tmp_path, script, why):
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
    monkeypatch.setattr(family, "_TERM_SECONDS", 0.5)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {deaf!r}])"
    with pytest.raises(KeyboardInterrupt):
        run_variant(NAMED["quiet"], launch(child))
    assert len(started) == 2
    assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []


def test_one_process_is_started_as_it_is_and_several_by_accelerate():
    alone = Launch(recipe(), "r.yaml", ("a.b=1",), 6, 3, Path("p"), 0, 4)
    assert alone.command(NAMED["quiet"], Path("f")) == [
        sys.executable,
        *("-m", "hf_efficient.isolate.worker", "r.yaml", "a.b=1"),
        *("--variant=quiet", "--steps=6", "--warm-up=3", "--share=1", "--folder=f"),
    ]
    several = Launch(recipe(2), "r.yaml", (), 6, 3, Path("p"), 0, 4)
    command = several.command(NAMED["quiet"], Path("f"))
    assert "--num_processes=2" in command
    assert command[command.index("-m") + 1 :][:2] == ["hf_efficient.isolate.worker", "r.yaml"]
    one = several.command(NAMED["one_process"], Path("f"))
    assert (one[0], one[-2]) == (sys.executable, "--share=2")
    assert (alone.threads, several.threads) == (4, 2)


def test_auto_is_a_process_per_device():
    assert Launch(recipe("auto"), "r", (), 6, 3, Path("p"), 3, 4).processes == 3
    assert Launch(recipe("auto"), "r", (), 6, 3, Path("p"), 0, 4).processes == 1
