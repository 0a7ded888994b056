"""What a process may use of this machine, as facts."""

from __future__ import annotations

import json
import os

import torch

from hf_efficient.recording.machine import machine_facts


def test_what_this_process_may_use(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    facts = machine_facts()
    assert (facts["omp_num_threads"], facts["ranks_here"]) == ("3", 2)
    assert facts["torch_threads"] == torch.get_num_threads()
    assert facts["cpus"] == os.cpu_count()
    assert 0 < facts["usable_cpus"] <= facts["allowed_cpus"] <= facts["cpus"]
    assert json.loads(json.dumps(facts)) == facts


def test_a_launcher_that_tells_nonsense(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "two")
    assert "ranks_here" not in machine_facts()
