"""What a step's data wait consisted of, in the records of a training; which goes as it would without."""

from __future__ import annotations

import pytest
from datasets import Dataset
from tiny_training import assert_same_run, causal_trainer, every, records, rows, stated, train_causal
from transformers import Trainer

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.recording.loader import Taken
from hf_efficient.trainer import EfficientTrainer


def loader_parts(folder):
    return [record.loader for record in records(folder)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["list", "arrow", "stream"])
def test_an_epoch_is_told_and_trains_as_without(tiny_dir, tmp_path, kind, workers):
    def train(trainer):
        arrow = Dataset.from_list(rows())
        data = {"list": trainer.train_dataset, "arrow": arrow, "stream": arrow.to_iterable_dataset(num_shards=2)}
        trainer.train_dataset = data[kind]
        trainer.train()
        return trainer

    settings = {"max_steps": 6, "per_device_train_batch_size": 4, "dataloader_num_workers": workers}
    plain = train(causal_trainer(Trainer, tiny_dir, tmp_path / "plain", **settings))
    ours = train(causal_trainer(EfficientTrainer, tiny_dir, tmp_path, **settings))
    assert_same_run(ours, plain)
    found = loader_parts(tmp_path)
    assert sum(part.batches for part in found) == sum(part.fetched for part in found) == 6
    assert sum(part.rows for part in found) == 24
    assert all((part.ready is None) == (workers == 0) for part in found)
    assert found[0].first_wait_seconds > 0
    assert stated(tmp_path, "loader")["workers"] == workers


@pytest.mark.parametrize("alone", [False, True])
def test_the_callback_alone_sees_the_loader_too(tiny_dir, tmp_path, alone):
    kind, callbacks = (Trainer, [AccountCallback()]) if alone else (EfficientTrainer, [])
    train_causal(kind, tiny_dir, tmp_path, callbacks=callbacks, gradient_accumulation_steps=2)
    found = loader_parts(tmp_path)
    assert sum(part.rows for part in found) >= 12
    assert found[0].fetch_seconds > 0


def test_the_rest_of_an_epoch_after_a_resumption_is_told(tiny_dir, tmp_path):
    """accelerate makes a new loader for it, which skips what was trained on."""
    settings = {**every(save=2), "per_device_train_batch_size": 4}
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, **settings)
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, **settings, resume=str(tmp_path / "checkpoint-2"))
    found = [record for record in records(tmp_path) if record.segment == 1]
    assert [record.step for record in found] == [3, 4]
    assert sum(record.loader.fetched for record in found) >= 2


def test_without_records_no_loader_is_watched(tiny_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(Taken, "add", lambda self, batch: pytest.fail("a batch was looked at"))
    train_causal(EfficientTrainer, tiny_dir, tmp_path, mixin={"record_steps": False})
