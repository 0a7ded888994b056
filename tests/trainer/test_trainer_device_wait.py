"""Where the host waits for the device, seen with a device that is played and a read-back that takes long."""

from __future__ import annotations

import time

import pytest
import torch
from tiny_training import records, train_causal
from transformers import Trainer

from hf_efficient.trainer import EfficientTrainer

SLEEP = 0.03


class Played:
    """Takes the place of a ``DeviceWatch``, and keeps what it is told."""

    def __init__(self):
        self.told = []

    def enter(self, name):
        self.told.append(name)

    def leave(self, name):
        pass

    def cut(self):
        return None, None


@pytest.fixture
def slow_read_back(monkeypatch):
    real = torch.isnan

    def isnan(*args, **kwargs):
        time.sleep(SLEEP)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "isnan", isnan)


def run(tiny_dir, folder):
    train_causal(EfficientTrainer, tiny_dir, folder, max_steps=3, gradient_accumulation_steps=2)
    return [record.phase_seconds for record in records(folder)]


def test_the_wait_for_the_loss_is_a_phase_of_its_own(tiny_dir, tmp_path, monkeypatch, slow_read_back):
    device = Played()
    monkeypatch.setattr("hf_efficient.recording.steps.watch_device", lambda *_, **__: device)
    for phases in run(tiny_dir, tmp_path):
        assert 2 * SLEEP <= phases["device_wait"] < 3 * SLEEP  # two micro-batches
        assert phases["bookkeeping"] < SLEEP
    assert {"forward", "backward", "optimizer"} <= set(device.told)
    assert not {"device_wait", "bookkeeping"} & set(device.told)


def test_without_a_device_it_is_bookkeeping(tiny_dir, tmp_path, slow_read_back):
    for phases in run(tiny_dir, tmp_path):
        assert "device_wait" not in phases
        assert phases["bookkeeping"] >= 2 * SLEEP


def test_the_count_of_flops_is_that_of_the_trainer(tiny_dir, tmp_path):
    flos = []
    for kind in (Trainer, EfficientTrainer):
        trainer = train_causal(kind, tiny_dir, tmp_path / kind.__name__, max_steps=2)
        flos.append(trainer.state.total_flos)
    assert flos[0] == flos[1] > 0
