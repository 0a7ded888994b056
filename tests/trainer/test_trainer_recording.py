"""steps.jsonl: which records a run leaves, and that recording can fail without the training noticing."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from accelerate import Accelerator
from hand_clock import Hand, timeline_of
from tiny_training import assert_same_run, causal_trainer, every, gradient_norms, losses, rows, train_causal
from transformers import Trainer

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.events import EventLog
from hf_efficient.recording.steps import StepRecorder
from hf_efficient.records.steps import TokenCounts
from hf_efficient.run_dir.reading import read_steps
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin


@pytest.fixture
def hand(monkeypatch):
    """The clock of this process."""
    clock = Hand()
    monkeypatch.setattr(timelines, "_timeline", timeline_of(clock))
    return clock


def records(folder):
    return list(read_steps(folder / "steps.jsonl"))


def test_one_record_per_optimizer_step(tiny_dir, tmp_path):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, gradient_accumulation_steps=2)
    found = records(tmp_path / "efficiency")
    assert [(r.segment, r.rank, r.step, r.micro_batches) for r in found] == [(0, 0, n, 2) for n in (1, 2, 3, 4)]
    assert [r.loss for r in found] == losses(trainer)
    assert [r.epoch for r in found] == [2 / 12, 4 / 12, 6 / 12, 8 / 12]
    assert sorted(path.name for path in (tmp_path / "efficiency").iterdir()) == [
        "diagnosis.json",
        "report.html",
        "run.json",
        "spans.jsonl",
        "steps.jsonl",
        "system.jsonl",
    ]


def test_tokens_of_an_epoch(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=-1, num_train_epochs=1, packed=True)
    total = sum(len(row["input_ids"]) for row in rows(packed=True))
    examples = 2 * len(rows(packed=True))
    found = [record.tokens for record in records(tmp_path / "efficiency")]
    assert sum(tokens.processed for tokens in found) == total
    assert sum(tokens.non_padding for tokens in found) == total
    assert sum(tokens.loss_bearing for tokens in found) == total - examples  # the first of each predicts nothing


def test_tokens_of_a_padded_step(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=1, per_device_train_batch_size=24)
    lengths = [len(row["input_ids"]) for row in rows()]
    (record,) = records(tmp_path / "efficiency")
    assert record.tokens == TokenCounts(24 * max(lengths), sum(lengths), sum(lengths))


def test_records_tile_the_training_loop(tiny_dir, tmp_path):
    """Nothing between the first record's start and the last one's end is left out or counted twice."""
    train_causal(
        EfficientTrainer,
        tiny_dir,
        tmp_path,
        max_steps=5,
        eval_rows=4,
        **every(evaluate=2),
        eval_on_start=True,
        **every(save=3),
        per_device_train_batch_size=8,
    )
    found = records(tmp_path / "efficiency")
    assert [r.step for r in found] == [1, 2, 3, 4, 5]
    for before, after in pairwise(found):
        assert before.started_at_seconds + before.wall_seconds == pytest.approx(after.started_at_seconds, abs=2e-9)
    for record in found:
        spent = math.fsum(record.phase_seconds.values()) + record.unattributed_seconds
        assert record.wall_seconds == pytest.approx(spent, abs=2e-9)
        assert 0 <= record.unattributed_seconds < record.wall_seconds
    every_step = {"data_wait", "host_to_device", "forward", "backward", "optimizer", "bookkeeping", "logging"}
    trailing = [set(r.phase_seconds) - every_step for r in found]
    assert trailing == [
        {"evaluation"},
        {"evaluation"},
        {"checkpointing"},
        {"evaluation"},
        {"evaluation", "checkpointing"},
    ]
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
    step = [
        "data_wait",
        "data_wait",
        "bookkeeping",
        *micro_batch,
        *micro_batch,
        "optimizer",
        "optimizer",
        "bookkeeping",
    ]
    assert marked[: len(step)] == step
    (record,) = records(tmp_path / "efficiency")
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
    (record,) = records(tmp_path / "efficiency")
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
    (record,) = records(tmp_path / "efficiency")
    assert (record.phase_seconds["forward"], record.phase_seconds["host_to_device"]) == (3.0, 8.0)
    assert record.unattributed_seconds == 0.0


def test_loss_is_recorded_only_where_it_was_logged(tiny_dir, tmp_path):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, logging_steps=2)
    assert [r.loss for r in records(tmp_path / "efficiency")] == [None, losses(trainer)[0], None, losses(trainer)[1]]


@pytest.mark.parametrize("alone", [False, True])
def test_learning_rate_and_gradient_norm_are_recorded_with_the_loss(tiny_dir, tmp_path, alone):
    kind, callbacks = (Trainer, [AccountCallback()]) if alone else (EfficientTrainer, [])
    trainer = train_causal(
        kind, tiny_dir, tmp_path, callbacks=callbacks, max_steps=4, logging_steps=2, lr_scheduler_type="linear"
    )
    assert [r.learning_rate for r in records(tmp_path / "efficiency")] == [None, 0.0075, None, 0.0025]
    assert [r.grad_norm for r in records(tmp_path / "efficiency")][1::2] == gradient_norms(trainer)


def test_a_log_of_words_does_not_end_the_recording(tiny_dir, tmp_path):
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path)
    trainer._get_learning_rate = lambda: "small"
    trainer.train()
    found = records(tmp_path / "efficiency")
    assert [r.loss for r in found] == losses(trainer)
    assert [r.learning_rate for r in found] == [None, None, None]


def test_no_training_no_file(tiny_dir, tmp_path):
    trainer = causal_trainer(EfficientTrainer, tiny_dir, tmp_path, eval_rows=4)
    trainer.evaluate()
    assert not (tmp_path / "efficiency").exists()


def test_recording_can_be_switched_off_and_sent_elsewhere(tiny_dir, tmp_path):
    off = train_causal(EfficientTrainer, tiny_dir, tmp_path / "off", mixin={"record_steps": False})
    assert not (tmp_path / "off" / "efficiency").exists()
    elsewhere = {"efficiency_dir": str(tmp_path / "elsewhere")}
    there = train_causal(EfficientTrainer, tiny_dir, tmp_path / "on", mixin=elsewhere)
    assert [r.step for r in records(tmp_path / "elsewhere")] == [1, 2, 3]
    assert_same_run(there, off)


def test_other_ranks_write_files_of_their_own(tmp_path):
    timeline = timeline_of(Hand())
    timeline.open(tmp_path, 3, "trainer")
    recorder = StepRecorder(timeline)
    recorder.open()
    recorder.next_step()
    recorder.step_done(1, None)
    recorder.end()
    (record,) = read_steps(tmp_path / "steps.rank3.jsonl")
    assert (record.rank, record.step) == (3, 1)


def test_lines_are_strict_json(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=1)
    (line,) = (tmp_path / "efficiency" / "steps.jsonl").read_text().splitlines()
    data = json.loads(line)
    assert sorted(data) == sorted(
        [
            "epoch",
            "grad_norm",
            "learning_rate",
            "loader",
            "loss",
            "micro_batches",
            "phase_seconds",
            "rank",
            "schema_version",
            "segment",
            "sequences",
            "started_at_seconds",
            "step",
            "tokens",
            "unattributed_seconds",
            "wall_seconds",
            "work",
        ]
    )
