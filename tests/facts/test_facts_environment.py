"""This machine, its packages, and what a process may use of it."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from hf_efficient.facts import environment
from hf_efficient.facts.environment import describe_environment, environment_facts, machine_facts, usable_cpus
from hf_efficient.version import __version__


def test_this_machine():
    found = describe_environment(ask_torch=False)
    assert found["python"] == platform.python_version()
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["logical_cores"] == psutil.cpu_count()
    assert found["versions"]["hf_efficient"] == __version__
    assert found["versions"]["transformers"] == importlib.metadata.version("transformers")
    assert (found["gpus"], found["cuda"]) == (None, None)
    assert json.loads(json.dumps(found)) == found


def fake_torch(*, available: bool, hip: str | None = None) -> SimpleNamespace:
    devices = [SimpleNamespace(name="NVIDIA H100", total_memory=80 * 2**30, major=9, minor=0)]
    cuda = SimpleNamespace(
        is_available=lambda: available,
        device_count=lambda: len(devices),
        get_device_properties=lambda index: devices[index],
    )
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8", hip=hip))


@pytest.mark.parametrize(
    ("torch", "gpus"),
    [
        (fake_torch(available=True), [("NVIDIA H100", 80 * 2**30, "9.0")]),
        (fake_torch(available=True, hip="6.2"), [("NVIDIA H100", 80 * 2**30, None)]),
        (fake_torch(available=False), []),
    ],
)
def test_gpus_are_those_that_torch_sees(monkeypatch, torch, gpus):
    monkeypatch.setitem(sys.modules, "torch", torch)
    found = describe_environment()
    assert [tuple(gpu.values()) for gpu in found["gpus"]] == gpus
    assert found["cuda"] == "12.8"


def git(folder, *args: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def git_state():
    found = describe_environment(ask_torch=False)
    return found["git_commit"], found["git_dirty"]


def test_git_state_of_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_state() == (None, None)
    git(tmp_path, "init", "-q")
    assert git_state() == (None, None)
    (tmp_path / "a").write_text("1", encoding="utf-8")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked").write_text("1", encoding="utf-8")
    assert git_state() == (commit, False)
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert git_state() == (commit, True)


def test_a_command_that_is_missing_fails_or_hangs_is_none(monkeypatch):
    assert environment._output(["no-such-command-here"]) is None
    assert environment._output([sys.executable, "-c", "raise SystemExit(1)"]) is None
    monkeypatch.setattr(environment, "_COMMAND_SECONDS", 0.01)
    assert environment._output([sys.executable, "-c", "import time; time.sleep(60)"]) is None


@pytest.fixture
def on_eight(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("quota", "usable"),
    [("max 100000", 8.0), ("250000 100000", 2.5), ("1600000 100000", 8.0), ("garbage", 8.0), (None, 8.0)],
)
def test_cpus_that_may_be_used(tmp_path, on_eight, quota, usable):
    file = tmp_path / "cpu.max"
    if quota is not None:
        file.write_text(f"{quota}\n")
    assert usable_cpus(file) == usable


@pytest.fixture(autouse=True)
def _forgotten():
    environment_facts.cache_clear()
    yield
    environment_facts.cache_clear()


def test_it_is_what_hf_efficient_env_tells_gathered_once(monkeypatch):
    asked = []

    def describe(*, ask_torch):
        asked.append(ask_torch)
        return describe_environment(ask_torch=ask_torch)

    monkeypatch.setattr(environment, "describe_environment", describe)
    found = environment_facts()
    assert found == environment_facts() == describe_environment(ask_torch=asked[0])
    assert found["python"] == platform.python_version()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("available", "started", "asks"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_it_starts_no_gpu(monkeypatch, available, started, asks):
    monkeypatch.setattr("torch.cuda.is_available", lambda: available)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: started)
    asked = []

    def describe(*, ask_torch):
        asked.append(ask_torch)
        return describe_environment(ask_torch=False)

    monkeypatch.setattr(environment, "describe_environment", describe)
    environment_facts()
    assert asked == [asks]


def test_a_fault_is_told_as_a_gap(monkeypatch):
    def describe(*, ask_torch):
        raise OSError("no such command")

    monkeypatch.setattr(environment, "describe_environment", describe)
    assert environment_facts() == {"missing": [{"what": "versions and hardware", "why": "OSError: no such command"}]}


def test_what_this_process_may_use(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    facts = machine_facts()
    assert (facts["omp_num_threads"], facts["ranks_here"]) == ("3", 2)
    assert facts["torch_threads"] == torch.get_num_threads()
    assert facts["cpus"] == os.cpu_count()
    assert 0 < facts["usable_cpus"] <= facts["allowed_cpus"] <= facts["cpus"]
    assert json.loads(json.dumps(facts)) == facts
