"""Processes of their own: what they leave, why they failed, and that none outlives its call."""

import json
import sys
import time

import psutil
import pytest

from hf_efficient.launch import exits
from hf_efficient.run_dir.json_file import folder_of_its_own
from hf_efficient.trials import process as module
from hf_efficient.trials.process import RunFailed, run_to_end


@pytest.fixture
def scripted(tmp_path):
    """Runs a script; ``FOLDER`` in it is that of the run."""

    def run(script: str):
        with folder_of_its_own(tmp_path / "a") as folder:
            return run_to_end([sys.executable, "-c", script.replace("FOLDER", repr(str(folder)))], folder, 1)

    return run


def left(content: object) -> str:
    return f"open(FOLDER + '/result.json', 'w').write({json.dumps(content)!r})"


def test_what_a_process_leaves_is_read_and_its_folder_removed(scripted, tmp_path):
    (tmp_path / "a" / "of_a_killed_one").mkdir(parents=True)
    assert scripted(left({"result": [1.0, None]})) == [1.0, None]
    assert scripted(f"{left({'result': 1})}; raise SystemExit(6)") == 1  # a library that fails at its exit
    assert scripted("print('abc')") is None
    assert list(tmp_path.iterdir()) == []


FAULTS = {
    f"{left({'failure': 'out of device memory', 'kind': 'input'})}; raise SystemExit(1)": "out of device memory",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "killed, perhaps because memory ran out",
    "print('abc'); raise SystemExit('it broke')": "exit code 1: it broke",
    "raise SystemExit(7)": "exit code 7, and it said nothing",
}


def test_why_a_process_failed(scripted, tmp_path):
    for script, why in FAULTS.items():
        with pytest.raises(RunFailed, match=why):
            scripted(script)
        assert list(tmp_path.iterdir()) == []


def test_an_interruption_leaves_neither_process_nor_folder(scripted, tmp_path, monkeypatch):
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
        scripted(child)
    assert len(started) == 2
    assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert list(tmp_path.iterdir()) == []
