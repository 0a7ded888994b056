from __future__ import annotations

import os

import pytest

from hf_efficient.facts.environment import usable_cpus


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
