"""steps.jsonl: which records a run leaves of its steps, of their data wait and of the wait for the device."""

import math
import time
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from hand_clock import Hand, timeline_of
from tiny_training import (
    assert_same_run,
    causal_trainer,
    every,
    gradient_norms,
    losses,
    records,
    rows,
    stated,
    train_causal,
)
from transformers import Trainer

from hf_efficient.accounting.account import account_of
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.events import EventLog
from hf_efficient.recording.loader import Taken
from hf_efficient.records.steps import TokenCounts
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin
from tests.conftest import read_steps


@pytest.fixture
def hand(monkeypatch):
    """The clock of this process."""
    clock = Hand()
    monkeypatch.setattr(timelines, "_timeline", timeline_of(clock))
    return clock


def test_one_record_per_optimizer_step(tiny_dir, tmp_path):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, gradient_accumulation_steps=2)
    found = records(tmp_path)
    assert [(r.segment, r.rank, r.step, r.micro_batches) for r in found] == [(0, 0, n, 2) for n in (1, 2, 3, 4)]
    assert [r.loss for r in found] == losses(trainer)
    assert [r.epoch for r in found] == [2 / 12, 4 / 12, 6 / 12, 8 / 12]
    files = "diagnosis.json report.html run.json spans.jsonl steps.jsonl system.jsonl"
    assert " ".join(sorted(path.name for path in (tmp_path / "efficiency").iterdir())) == files


def test_tokens_of_an_epoch(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=-1, num_train_epochs=1, packed=True)
    total = sum(len(row["input_ids"]) for row in rows(packed=True))
    examples = 2 * len(rows(packed=True))
    found = [record.tokens for record in records(tmp_path)]
    assert sum(tokens.processed for tokens in found) == total
    assert sum(tokens.non_padding for tokens in found) == total
    assert sum(tokens.target for tokens in found) == total - examples  # the first of each predicts nothing


def test_tokens_of_a_padded_step_by_hand(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=1, per_device_train_batch_size=24)
    lengths = [len(row["input_ids"]) for row in rows()]
    (record,) = records(tmp_path)
    assert record.tokens == TokenCounts(24 * max(lengths), sum(lengths), sum(lengths))
    found = account_of(tmp_path / "efficiency")
    assert found.tokens.processed == 24 * max(lengths)
    assert found.tokens.non_padding == found.tokens.target == sum(lengths)
    assert found.tokens.padding_share == 1 - sum(lengths) / (24 * max(lengths))
    assert found.tokens.non_padding_tokens_per_second == sum(lengths) / found.time.training_seconds
    phases = found.time.phase_seconds
    in_loop = ("data_wait", "host_to_device", "forward", "backward", "optimizer")
    assert math.fsum(phases[name] for name in in_loop) <= found.time.training_seconds
    assert found.memory.device_peak_allocated_bytes is None
    assert "device_peak_allocated_bytes" not in (tmp_path / "efficiency/spans.jsonl").read_text()


def test_records_tile_the_training_loop(tiny_dir, tmp_path):
    """Nothing between the first record's start and the last one's end is left out or counted twice."""
    settings = {**every(evaluate=2, save=3), "eval_on_start": True, "per_device_train_batch_size": 8}
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=5, eval_rows=4, **settings)
    found = records(tmp_path)
    assert [r.step for r in found] == [1, 2, 3, 4, 5]
    for before, after in pairwise(found):
        assert before.started_at_seconds + before.wall_seconds == pytest.approx(after.started_at_seconds, abs=2e-9)
    for record in found:
        spent = math.fsum(record.phase_seconds.values()) + record.unattributed_seconds
        assert record.wall_seconds == pytest.approx(spent, abs=2e-9)
        assert 0 <= record.unattributed_seconds < record.wall_seconds
    every_step = {"data_wait", "host_to_device", "forward", "backward", "optimizer", "bookkeeping", "logging"}
    evaluated, saved = {"evaluation"}, {"checkpointing"}
    trailing = [set(r.phase_seconds) - every_step for r in found]
    assert trailing == [evaluated, evaluated, saved, evaluated, evaluated | saved]
    assert all(every_step <= set(record.phase_seconds) for record in found)


class OwnCount(EfficientTrainer):
    """Transformers names this method as one to override."""

    def floating_point_ops(self, inputs):
        return 0


@pytest.mark.parametrize("kind", [EfficientTrainer, OwnCount])
@pytest.mark.parametrize("clipped", [{}, {"max_grad_norm": 0}])
def test_the_marks_of_a_step(tiny_dir, tmp_path, monkeypatch, kind, clipped):
    marked, mark = [], EventLog.mark

    def marks(self, phase):
        if self.in_loop:
            marked.append(phase)
        return mark(self, phase)

    monkeypatch.setattr(EventLog, "mark", marks)
    train_causal(kind, tiny_dir, tmp_path, max_steps=1, gradient_accumulation_steps=2, **clipped)
    # data_wait: from the epoch, again from get_batch_samples. optimizer: from the gradients' norm, also where nothing
    # is clipped, again from the event, to on_step_end.
    micro_batch = [None, "host_to_device", None, "forward", None, "backward", None, "bookkeeping"]
    step = ["data_wait", "data_wait", "bookkeeping", *micro_batch, *micro_batch]
    step += ["optimizer", "optimizer", "bookkeeping"]
    assert marked[: len(step)] == step
    (record,) = records(tmp_path)
    assert set(record.phase_seconds) == {*step, "logging"} - {None}


@pytest.mark.parametrize("where", ["_prepare_inputs", "compute_loss", "backward"])
def test_what_is_done_about_an_error_belongs_to_no_phase(tiny_dir, tmp_path, monkeypatch, hand, where):
    """A trainer that leaves out a micro-batch whose forward or backward fails."""

    def fails(*args, **kwargs):
        raise ValueError("this micro-batch is broken")

    class LeavesOut(EfficientTrainer):
        def training_step(self, model, inputs, *args, **kwargs):
            try:
                return super().training_step(model, inputs, *args, **kwargs)
            except ValueError:
                hand.wait(5)
                return torch.zeros(())

    if where == "backward":
        monkeypatch.setattr(Accelerator, where, fails)
    else:
        monkeypatch.setattr(Trainer, where, fails)
    train_causal(LeavesOut, tiny_dir, tmp_path, max_steps=1, mixin={"check_gradients": False})
    (record,) = records(tmp_path)
    assert record.unattributed_seconds == record.wall_seconds == 5.0


def test_a_phase_goes_on_after_another_one_inside_it(tiny_dir, tmp_path, hand):

    class Below(Trainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            hand.wait(1)
            inputs = self._prepare_inputs(inputs)
            hand.wait(2)
            return super().compute_loss(model, inputs, *args, **kwargs)

        def _prepare_inputs(self, *args, **kwargs):
            hand.wait(4)
            return super()._prepare_inputs(*args, **kwargs)

    class Ours(EfficientTrainerMixin, Below):
        pass

    train_causal(Ours, tiny_dir, tmp_path, max_steps=1)
    (record,) = records(tmp_path)
    assert (record.phase_seconds["forward"], record.phase_seconds["host_to_device"]) == (3.0, 8.0)
    assert record.unattributed_seconds == 0.0


@pytest.mark.parametrize("alone", [False, True])
def test_loss_learning_rate_and_gradient_norm_are_recorded_where_they_are_logged(tiny_dir, tmp_path, alone):
    kind, callbacks = (Trainer, [AccountCallback()]) if alone else (EfficientTrainer, [])
    settings = {"max_steps": 4, "logging_steps": 2, "lr_scheduler_type": "linear"}
    trainer = train_causal(kind, tiny_dir, tmp_path, callbacks=callbacks, **settings)
    found = records(tmp_path)
    assert [r.loss for r in found] == [None, losses(trainer)[0], None, losses(trainer)[1]]
    assert [r.learning_rate for r in found] == [None, 0.0075, None, 0.0025]
    assert [r.grad_norm for r in found][1::2] == gradient_norms(trainer)


def test_a_log_of_words_does_not_end_the_recording(tiny_dir, tmp_path):
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path)
    trainer._get_learning_rate = lambda: "small"
    trainer.train()
    found = records(tmp_path)
    assert [r.loss for r in found] == losses(trainer)
    assert [r.learning_rate for r in found] == [None, None, None]


def test_recording_can_be_switched_off_and_sent_elsewhere(tiny_dir, tmp_path, monkeypatch, plain_run):
    there = train_causal(EfficientTrainer, tiny_dir, tmp_path, mixin={"efficiency_dir": str(tmp_path / "there")})
    assert [r.step for r in read_steps(tmp_path / "there/steps.jsonl")] == [1, 2, 3]
    monkeypatch.setattr(Taken, "add", lambda self, batch: pytest.fail("a batch was looked at"))
    off = train_causal(EfficientTrainer, tiny_dir, tmp_path, mixin={"record_steps": False})
    assert_same_run(there, plain_run(3))
    assert_same_run(off, plain_run(3))
    causal_trainer(EfficientTrainer, tiny_dir, tmp_path, eval_rows=4).evaluate()  # no training, no file
    assert not (tmp_path / "efficiency").exists()


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


@pytest.mark.parametrize("device", [Played(), None])
def test_the_wait_for_the_loss_is_a_phase_of_its_own_beside_a_device(
    tiny_dir, tmp_path, monkeypatch, slow_read_back, device
):
    monkeypatch.setattr("hf_efficient.recording.steps.watch_device", lambda *_, **__: device)
    train_causal(EfficientTrainer, tiny_dir, tmp_path, gradient_accumulation_steps=2)
    for phases in (one.phase_seconds for one in records(tmp_path)):
        if device:
            assert 2 * SLEEP <= phases["device_wait"] < 3 * SLEEP  # two micro-batches
            assert phases["bookkeeping"] < SLEEP
        else:
            assert "device_wait" not in phases
            assert phases["bookkeeping"] >= 2 * SLEEP
    if device:
        assert {"forward", "backward", "optimizer"} <= set(device.told)
        assert not {"device_wait", "bookkeeping"} & set(device.told)
