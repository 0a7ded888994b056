"""What a run states of the machine and the packages that it runs on."""

from __future__ import annotations

import platform

import pytest

from hf_efficient.facts.environment import describe_environment
from hf_efficient.recording import environment
from hf_efficient.recording.environment import environment_facts


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
    assert found == environment_facts() == describe_environment(ask_torch=asked[0]).to_dict()
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
