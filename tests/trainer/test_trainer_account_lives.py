"""Runs that follow each other in a process or a folder: each ends, and none is in the account of another."""

from __future__ import annotations

import importlib.metadata
import json
import math
import shutil
import time
from pathlib import Path

import pytest
from tiny_training import causal_trainer, every, lines, train_causal
from transformers import Trainer, TrainerCallback

from hf_efficient.accounting.account import account_of, read_account
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.facts.environment import environment_facts
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.clocks import ProcessStart
from hf_efficient.recording.timeline import Timeline, process_timeline
from hf_efficient.trainer import EfficientTrainer

SLEPT = 0.2
NOT_ENDED = "the training did not end, and another run began in its process"


class Raise(TrainerCallback):
    """In the middle of a step: two are done, and the third has its gradients."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise RuntimeError("out of memory")


def fail(tiny_dir: Path, output: Path, *more: TrainerCallback) -> Trainer:
    trainer = causal_trainer(Trainer, tiny_dir, output, callbacks=[AccountCallback(), *more, Raise()])
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    return trainer


@pytest.mark.parametrize("kind", [Trainer, EfficientTrainer])
def test_a_training_that_raised_ends_when_another_run_begins(tiny_dir, tmp_path, writers, kind):
    fail(tiny_dir, tmp_path / "a")
    time.sleep(SLEPT)
    callbacks = [AccountCallback()] if kind is Trainer else []
    train_causal(kind, tiny_dir, tmp_path / "b", callbacks=callbacks)
    assert writers() == []
    first, second = (read_account(tmp_path / name / "efficiency/run.json") for name in "ab")
    assert (first.ended, first.error) == ("error", NOT_ENDED)
    assert (second.ended, second.steps.count) == ("done", 3)
    assert account_of(tmp_path / "a/efficiency") == first
    # What came after the last event is nobody's: it was not seen when the training stopped.
    (one,) = first.time.processes
    assert SLEPT <= one.unattributed_seconds < one.wall_seconds
    assert max(one.phase_seconds[name] for name in ("forward_backward", "between_steps")) < SLEPT
    assert math.isclose(math.fsum(one.phase_seconds.values()) + one.unattributed_seconds, one.wall_seconds)
    assert one.began_at_seconds + one.wall_seconds <= second.time.processes[0].began_at_seconds
    # The steps before it have their records, and what the third had come to is told.
    assert [step["step"] for step in lines(tmp_path / "a", "steps.jsonl")] == [1, 2]
    assert any("forward_backward" in line.get("phase_seconds", ()) for line in lines(tmp_path / "a", "spans.jsonl"))


def test_a_training_that_raised_ends_when_the_same_run_goes_on(tiny_dir, tmp_path, writers):
    trainer = fail(tiny_dir, tmp_path)
    time.sleep(SLEPT)
    trainer.remove_callback(Raise)
    trainer.train()
    assert writers() == []
    found = read_account(tmp_path / "efficiency/run.json")
    assert (found.ended, found.steps.count) == ("done", 2 + 3)
    (one,) = found.time.processes
    assert [(call.steps, call.ended) for call in one.trainings] == [(2, "error"), (3, "done")]
    assert one.trainings[0].wall_seconds + SLEPT <= one.trainings[1].called_at_seconds
    assert one.unattributed_seconds >= SLEPT
    assert math.isclose(math.fsum(one.phase_seconds.values()) + one.unattributed_seconds, one.wall_seconds)
    assert found.time.training_seconds < one.wall_seconds - SLEPT


def test_a_second_callback_of_the_same_training_changes_nothing(tiny_dir, tmp_path, writers):
    fail(tiny_dir, tmp_path / "a", AccountCallback())
    train_causal(Trainer, tiny_dir, tmp_path / "b", callbacks=[AccountCallback(), AccountCallback()])
    assert writers() == []
    assert [len(lines(tmp_path / name, "steps.jsonl")) for name in "ab"] == [2, 3]


@pytest.fixture
def next_process(monkeypatch):
    """From here on this is another process, as far as the records know: one that started 100 s ago by this clock."""

    def start(clock=time.perf_counter_ns):
        process_timeline().exits()
        started = ProcessStart(clock() - 100_000_000_000, "kernel")
        monkeypatch.setattr(timelines, "_timeline", Timeline(clock, lambda: started))

    yield start
    process_timeline().release()


def trained(kind: type, tiny_dir: Path, output: Path, resume: bool = False, **changes) -> Trainer:
    callbacks = [AccountCallback()] if kind is Trainer else []
    settings = {**every(save=2), **changes}
    trainer = train_causal(kind, tiny_dir, output, callbacks=callbacks, **settings, resume=resume)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Trainer, EfficientTrainer])
def test_a_new_run_moves_the_records_of_another_process_aside(tiny_dir, tmp_path, next_process, kind):
    next_process()
    trained(kind, tiny_dir, tmp_path)
    next_process()
    trained(kind, tiny_dir, tmp_path, resume=True, max_steps=4)
    folder = tmp_path / "efficiency"
    assert not (folder / "previous").exists()
    resumed = account_of(folder)
    assert (len(resumed.time.processes), resumed.steps.count) == (2, 3 + 1)
    next_process()
    trained(kind, tiny_dir, tmp_path)
    trained(kind, tiny_dir, tmp_path)  # the account is of the process
    assert account_of(folder / "previous/1").steps == resumed.steps
    found = read_account(folder / "run.json")
    assert (len(found.time.processes), found.steps.count) == (1, 3 + 3)
    assert [path.name for path in (folder / "previous").iterdir()] == ["1"]
    assert found.environment == json.loads(json.dumps(environment_facts()))
    assert found.environment["versions"]["torch"] == importlib.metadata.version("torch")
    page = (folder / "report.html").read_text()
    assert found.environment["versions"]["transformers"] in page
    assert found.environment["platform"] in page
    assert {path.name for path in (folder / "previous/1").iterdir()} >= {"run.json", "report.html", "steps.jsonl"}


@pytest.mark.slow
def test_what_is_logged_and_limited_is_what_the_account_counts(tiny_dir, tmp_path, next_process):
    told, now = {}, [10**12]

    def wait(seconds):
        now[0] += seconds * 10**9

    def clock():
        return now[0]

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            wait(10)
            told[state.global_step] = process_timeline().live.spent().wall_seconds

    def train(name):
        train_causal(EfficientTrainer, tiny_dir, tmp_path / name, callbacks=[Look()], max_steps=2)

    next_process(clock)
    train("a")
    assert told == {1: 110.0, 2: 120.0}
    wait(5)
    train("a")
    assert told == {1: 135.0, 2: 145.0}
    train("b")
    assert told == {1: 10.0, 2: 20.0}
    train("a")
    assert told == {1: 155.0, 2: 165.0}
    assert read_account(tmp_path / "a/efficiency/run.json").time.wall_seconds == 165.0
    wait(1000)
    next_process(clock)
    train("a")
    assert told == {1: 110.0, 2: 120.0}
    assert read_account(tmp_path / "a/efficiency/run.json").time.wall_seconds == 120.0


def test_a_callback_stands_back_under_a_trainer_that_goes_on_with_its_run(tiny_dir, tmp_path, writers):
    fail(tiny_dir, tmp_path)
    train_causal(EfficientTrainer, tiny_dir, tmp_path, callbacks=[AccountCallback()])
    assert writers() == []
    (one,) = read_account(tmp_path / "efficiency/run.json").time.processes
    assert [(call.steps, call.ended) for call in one.trainings] == [(2, "error"), (3, "done")]
    assert "forward" in lines(tmp_path, "steps.jsonl")[-1]["phase_seconds"]


def test_a_run_whose_folder_was_removed_is_recorded_anew(tiny_dir, tmp_path, writers, caplog):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path / "a", max_steps=2)
    shutil.rmtree(tmp_path / "a")
    time.sleep(SLEPT)
    trainer.train()
    account = account_of(tmp_path / "a" / "efficiency")
    assert account.steps.count == 2
    assert [line["kind"] for line in lines(tmp_path / "a", "spans.jsonl")].count("process") == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("hf_efficient")] == []
    assert writers() == []
