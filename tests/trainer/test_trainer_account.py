"""The account of real trainings: it closes, planted time shows where it was planted, and no run takes another's."""

import importlib.metadata
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_training import (
    assert_same_run,
    causal_trainer,
    every,
    lines,
    losses,
    records,
    rows,
    train_causal,
    valid_account,
)
from transformers import Trainer, TrainerCallback

from hf_efficient.accounting.account import account_of, read_account
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.facts.environment import environment_facts
from hf_efficient.recording import timeline as timelines
from hf_efficient.recording.meters import ProcessStart
from hf_efficient.recording.timeline import Timeline, process_timeline
from hf_efficient.records.account import RunAccount
from hf_efficient.trainer import EfficientTrainer, EfficientTrainerMixin

PLANT = 0.12
SLEPT: dict[str, list[float]] = {}
BUSY = {**every(evaluate=4, save=4)}


def assert_closed(found: RunAccount, unattributed_share: float = 0.02) -> None:
    """Phases and rest make up the wall, of every process and of the run; the rest is small."""
    for part in (found.time, *found.time.processes):
        assert math.isclose(math.fsum(part.phase_seconds.values()) + part.unattributed_seconds, part.wall_seconds)
        assert 0 <= part.unattributed_seconds <= unattributed_share * part.wall_seconds
    assert found.time.wall_seconds == pytest.approx(sum(one.wall_seconds for one in found.time.processes))


def plant(phase: str, seconds: float = PLANT) -> None:
    """Sleep, and keep how long that really was."""
    before = time.perf_counter()
    time.sleep(seconds)
    SLEPT.setdefault(phase, []).append(time.perf_counter() - before)


@pytest.fixture(autouse=True)
def _nothing_slept():
    SLEPT.clear()


class SlowRows(torch.utils.data.Dataset):
    """Takes its time for every row that is fetched."""

    def __init__(self, count, seconds):
        self.rows, self.seconds = rows(count), seconds

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        plant("data_wait", self.seconds)
        return self.rows[index]


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, loss):
        return loss.clone()

    @staticmethod
    def backward(ctx, gradient):
        plant("backward")
        return gradient


class SlowTrainer(Trainer):
    """Sleeps in every phase of a step; lies below the mixin."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        if not self.model.training:
            return loss
        plant("forward")
        return SlowBackward.apply(loss)

    def create_optimizer(self, *args, **kwargs):
        optimizer = super().create_optimizer(*args, **kwargs)
        optimizer.register_step_pre_hook(lambda *_: plant("optimizer"))
        return optimizer

    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            plant("logging")
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        plant("evaluation", 3 * PLANT)
        return super().evaluation_loop(*args, **kwargs)

    def _save_checkpoint(self, *args, **kwargs):
        plant("checkpointing", 3 * PLANT)
        super()._save_checkpoint(*args, **kwargs)


def slow_trainer(tiny_dir, output, kind, seconds=PLANT / 2, **changes):
    settings = {"max_steps": 8, "eval_rows": 4, "dataloader_num_workers": 0, **BUSY, **changes}
    return causal_trainer(kind, tiny_dir, output, data=SlowRows(24, seconds), **settings)


@pytest.mark.slow
def test_planted_time_shows_where_it_was_planted(tiny_dir, tmp_path):
    class Slow(EfficientTrainerMixin, SlowTrainer):
        pass

    base = slow_trainer(tiny_dir, tmp_path / "base", EfficientTrainer, seconds=0)
    base.train()
    SLEPT.clear()
    slow = slow_trainer(tiny_dir, tmp_path / "slow", Slow)
    slow.train()
    assert_same_run(slow, base)
    found = valid_account(tmp_path / "slow")
    assert set(SLEPT) == {"data_wait", "forward", "backward", "optimizer", "logging", "evaluation", "checkpointing"}
    for phase, slept in SLEPT.items():
        assert 0.6 < sum(slept) < found.time.phase_seconds[phase] < 1.5 * sum(slept), phase
    inside = math.fsum(found.time.phase_seconds[phase] for phase in SLEPT)
    last = found.time.processes[-1]
    assert last.phase_seconds["trainer_setup"] + inside < last.wall_seconds
    assert_closed(found)


class Raise(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            time.sleep(PLANT)
            raise RuntimeError("in the middle\nof a step")


@pytest.mark.slow
def test_a_run_that_raises_leaves_its_account(tiny_dir, tmp_path):
    settings = {"callbacks": [Raise()], "gradient_accumulation_steps": 2, "logging_steps": 1}
    trainer = slow_trainer(tiny_dir, tmp_path, EfficientTrainer, **settings)
    with pytest.raises(RuntimeError, match="in the middle"):
        trainer.train()
    found = valid_account(tmp_path)
    assert (found.ended, found.error) == ("error", "RuntimeError: in the middle")
    (call,) = found.time.processes[0].trainings
    assert (call.ended, call.error) == (found.ended, found.error)
    assert (found.steps.count, found.time.processes[-1].last_step) == (5, 5)
    # The sixth step was never done; what it spent is told all the same.
    spans = lines(tmp_path, "spans.jsonl")
    unfinished = [span["phase_seconds"] for span in spans if "forward" in span.get("phase_seconds", {})]
    assert len(unfinished) == 1
    assert set(unfinished[0]) == {"data_wait", "host_to_device", "forward", "backward", "bookkeeping"}
    assert unfinished[0]["data_wait"] >= PLANT
    assert_closed(found, unattributed_share=0.1)  # the callback's own sleep is nobody's


class Upload(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(PLANT)

    def on_save(self, args, state, control, **kwargs):
        time.sleep(PLANT)


@pytest.mark.slow
def test_what_other_callbacks_do_after_a_step_and_with_a_checkpoint_has_a_name(tiny_dir, tmp_path):
    train_causal(EfficientTrainer, tiny_dir, tmp_path, callbacks=[Upload()], **every(save=2))
    steps = lines(tmp_path, "steps.jsonl")
    assert all(PLANT <= step["phase_seconds"]["bookkeeping"] < 2 * PLANT for step in steps)
    assert ["checkpointing" in step["phase_seconds"] for step in steps] == [False, True, True]
    assert all(step["phase_seconds"]["checkpointing"] >= PLANT for step in steps[1:])
    assert all(step["unattributed_seconds"] < PLANT / 2 for step in steps)


def test_training_twice_and_evaluating_between_is_one_process(tiny_dir, tmp_path):
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, eval_rows=4)
    first = valid_account(tmp_path)
    trainer.evaluate()
    time.sleep(PLANT)
    trainer.train()
    found = valid_account(tmp_path)
    (one,) = found.time.processes
    first_call, second_call = one.trainings
    assert [(call.steps, call.last_step, call.ended) for call in one.trainings] == [(3, 3, "done")] * 2
    assert first_call.called_at_seconds + first_call.wall_seconds + PLANT <= second_call.called_at_seconds
    assert first_call == first.time.processes[0].trainings[0]
    assert found.steps.count == 6
    assert found.time.phase_seconds["evaluation"] > 0
    assert "evaluation" not in first.time.phase_seconds
    more = found.time.phase_seconds["outside_trainer"] - first.time.phase_seconds.get("outside_trainer", 0.0)
    assert more >= PLANT
    assert found.steps.warm_up_count == 2  # one of three steps each time
    assert found.time.wall_seconds > first.time.wall_seconds + PLANT
    assert (found.recorded_by, found.ended) == ("trainer", "done")


def test_a_callback_alone_tells_what_it_sees(tiny_dir, tmp_path):
    settings = {"callbacks": [AccountCallback()], "eval_on_start": True, "logging_steps": 2}
    trainer = slow_trainer(tiny_dir, tmp_path, SlowTrainer, **settings)
    trainer.train()
    found = valid_account(tmp_path)
    phases = found.time.phase_seconds
    assert found.recorded_by == "callback"
    assert losses(trainer)[:2] == [one.loss for one in records(tmp_path)][1:4:2]
    SLEPT["forward_backward"] = SLEPT.pop("forward") + SLEPT.pop("backward")
    SLEPT["between_steps"] = SLEPT.pop("data_wait") + SLEPT.pop("logging")
    for name, slept in SLEPT.items():
        assert sum(slept) <= phases[name] < 1.5 * sum(slept), name
    assert not {"forward", "backward", "data_wait", "logging", "unattributed"} & set(phases)
    gaps = [gap.what for gap in found.not_measured if "at the start" not in gap.what]  # that depends on the machine
    assert "; ".join(gaps) == (
        "imports, model load and data preparation, each by itself; the interpreter's own end; forward and backward, "
        "each by itself; data wait and logging, each by itself; evaluations outside train(); tokens; FLOPs, MFU and "
        "HFU; measured energy of CPU; cost; memory of activations and logits"
    )
    assert found.tokens.processed is None
    assert found.work.reason.startswith("a callback is given neither the trainer nor its batches")
    assert found.steps.count == 8
    assert_closed(found)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tiny_training import build_model, arguments, collator, rows
from hf_efficient import EfficientTrainer

class Slow(EfficientTrainer):
    def training_step(self, *args, **kwargs):
        time.sleep(0.02)
        return super().training_step(*args, **kwargs)
    def evaluation_loop(self, *args, **kwargs):
        print("evaluating", flush=True)
        time.sleep(3600)

trainer = Slow(
    model=build_model(Path({model!r}), "lora"),
    args=arguments(Path({output!r}), max_steps=60, eval_strategy="steps", eval_steps=50),
    data_collator=collator(), train_dataset=rows(), eval_dataset=rows(4),
)
trainer.train()
"""


@pytest.mark.slow
def test_a_killed_run_keeps_its_account(tiny_dir, tmp_path):
    script = SCRIPT.format(tests=str(Path(__file__).parent), model=str(tiny_dir), output=str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "evaluating\n":
            break
    time.sleep(2.5)
    killed_at = time.monotonic()
    began = Path(f"/proc/{process.pid}/stat").read_text()
    process.send_signal(signal.SIGKILL)
    process.wait()
    ticks = int(began[began.rindex(")") + 2 :].split()[19])
    lived = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.monotonic() - killed_at) - ticks / os.sysconf("SC_CLK_TCK")

    folder = tmp_path / "efficiency"
    assert not (folder / "run.json").exists()
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "segm')
    found = account_of(folder)
    assert (found.ended, found.time.processes[0].open_phase) == ("died", "evaluation")
    assert lived - 2 < found.time.wall_seconds <= lived
    assert found.steps.count == 49  # the fiftieth is not over while its evaluation goes on
    assert found.time.phase_seconds["evaluation"] > 0.5
    assert_closed(found, unattributed_share=0.3)  # 50 sleeps outside every phase
    assert found.memory.peak_rss_bytes is not None
    assert "the end of the run" in [gap.what for gap in found.not_measured]
    (part,) = found.energy.parts
    assert part.covered_seconds + part.missing_seconds == pytest.approx(found.time.wall_seconds, abs=1e-3)
    assert not [gap for gap in found.not_measured if gap.what.startswith("energy of CPU")]  # at most two seconds


@pytest.mark.slow
def test_what_callbacks_before_it_do_with_a_checkpoint_belongs_to_it(tiny_dir, tmp_path):
    phases = []
    for place, callbacks in enumerate(([Upload(), AccountCallback()], [AccountCallback(), Upload()])):
        output = tmp_path / str(place)
        train_causal(Trainer, tiny_dir, output, max_steps=2, callbacks=callbacks, **every(save=1))
        phases.append(valid_account(output).time.phase_seconds)
    assert phases[0]["checkpointing"] >= 2 * PLANT
    assert phases[1]["between_steps"] >= PLANT  # the last save is the end of the loop


PAUSE = 0.2
NOT_ENDED = "the training did not end, and another run began in its process"


class RaiseInTheThird(TrainerCallback):
    """In the middle of a step: two are done, and the third has its gradients."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise RuntimeError("out of memory")


def fail(tiny_dir: Path, output: Path, *more: TrainerCallback) -> Trainer:
    trainer = causal_trainer(Trainer, tiny_dir, output, callbacks=[AccountCallback(), *more, RaiseInTheThird()])
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    return trainer


@pytest.mark.parametrize("kind", [Trainer, EfficientTrainer])
def test_a_training_that_raised_ends_when_another_run_begins(tiny_dir, tmp_path, writers, kind):
    fail(tiny_dir, tmp_path / "a")
    time.sleep(PAUSE)
    callbacks = [AccountCallback()] if kind is Trainer else []
    train_causal(kind, tiny_dir, tmp_path / "b", callbacks=callbacks)
    assert writers() == []
    first, second = (read_account(tmp_path / name / "efficiency/run.json") for name in "ab")
    assert (first.ended, first.error) == ("error", NOT_ENDED)
    assert (second.ended, second.steps.count) == ("done", 3)
    assert account_of(tmp_path / "a/efficiency") == first
    # What came after the last event is nobody's: it was not seen when the training stopped.
    (one,) = first.time.processes
    assert PAUSE <= one.unattributed_seconds < one.wall_seconds
    assert max(one.phase_seconds[name] for name in ("forward_backward", "between_steps")) < PAUSE
    assert math.isclose(math.fsum(one.phase_seconds.values()) + one.unattributed_seconds, one.wall_seconds)
    assert one.began_at_seconds + one.wall_seconds <= second.time.processes[0].began_at_seconds
    # The steps before it have their records, and what the third had come to is told.
    assert [step["step"] for step in lines(tmp_path / "a", "steps.jsonl")] == [1, 2]
    assert any("forward_backward" in line.get("phase_seconds", ()) for line in lines(tmp_path / "a", "spans.jsonl"))


def test_a_training_that_raised_ends_when_the_same_run_goes_on(tiny_dir, tmp_path, writers):
    trainer = fail(tiny_dir, tmp_path)
    time.sleep(PAUSE)
    trainer.remove_callback(RaiseInTheThird)
    trainer.train()
    assert writers() == []
    found = read_account(tmp_path / "efficiency/run.json")
    assert (found.ended, found.steps.count) == ("done", 2 + 3)
    (one,) = found.time.processes
    assert [(call.steps, call.ended) for call in one.trainings] == [(2, "error"), (3, "done")]
    assert one.trainings[0].wall_seconds + PAUSE <= one.trainings[1].called_at_seconds
    assert one.unattributed_seconds >= PAUSE
    assert math.isclose(math.fsum(one.phase_seconds.values()) + one.unattributed_seconds, one.wall_seconds)
    assert found.time.training_seconds < one.wall_seconds - PAUSE


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
    time.sleep(PAUSE)
    trainer.train()
    account = account_of(tmp_path / "a" / "efficiency")
    assert account.steps.count == 2
    assert [line["kind"] for line in lines(tmp_path / "a", "spans.jsonl")].count("process") == 1
    assert [record.getMessage() for record in caplog.records if record.name.startswith("hf_efficient")] == []
    assert writers() == []
