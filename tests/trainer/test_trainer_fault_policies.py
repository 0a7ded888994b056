"""A loss that is not finite, one that jumps, and memory that runs out: what each policy makes of the step."""

import copy
import json
import math
import pickle
import re
import resource
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from tiny_training import causal_trainer, every, losses, stated, trained_weights, valid_account
from transformers import TrainerCallback

from hf_efficient.callbacks import shrink
from hf_efficient.callbacks.faults import FaultPolicy, Faults
from hf_efficient.callbacks.shrink import divided
from hf_efficient.errors import TrainingCheckError
from hf_efficient.recording.timeline import no_timeline
from hf_efficient.reporting.run_rows import fault_words
from hf_efficient.run_dir.checkpoints import fault_of
from hf_efficient.trainer import EfficientTrainer


class Faulty(EfficientTrainer):
    """``times``: by step, what its loss is multiplied by."""

    times: Mapping[int, float] = MappingProxyType({})

    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs) * self.times.get(self.state.global_step + 1, 1.0)


@pytest.fixture
def train(tiny_dir, tmp_path):
    """Trains without dropout, so that a step does not depend on the random state."""

    def run(policy, times=None, kind=Faulty, **changes):
        settings = {"max_steps": 4, "method": "lora", "lr_scheduler_type": "constant", **changes}
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        trainer = causal_trainer(kind, tiny_dir, out, mixin={"faults": policy}, **settings)
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        trainer.times = times or {}
        trainer.out = out
        trainer.train()
        return trainer

    return run


def test_a_loss_that_is_not_finite_stops_the_run_and_its_batch_is_kept(train, tmp_path):
    with pytest.raises(TrainingCheckError, match=r"^step 3: the gradient norm is nan, the loss nan\. Its batch is in"):
        train(FaultPolicy(), {3: math.nan}, **every(save=1))
    (path,) = tmp_path.glob("out*/efficiency/faults/*.json")
    held = json.loads(path.read_text())
    assert (held["step"], held["micro_batches"][0]["loss"], len(held["micro_batches"][0]["rows"])) == (3, "nan", 2)
    row = held["micro_batches"][0]["rows"][0]
    assert row["tokens"] == len(row["ids"])
    assert {path.name for path in tmp_path.glob("out*/checkpoint-*")} == {"checkpoint-1", "checkpoint-2"}


def test_an_update_that_is_left_out_changes_nothing(train):
    """After it the weights are those of the step before, and the steps after it go on from there."""
    weights = {}

    class Noted(Faulty):
        def _maybe_log_save_evaluate(self, *args, **kwargs):
            weights[self.state.global_step] = trained_weights(self)
            super()._maybe_log_save_evaluate(*args, **kwargs)

    trainer = train(FaultPolicy(on_non_finite="skip"), {2: math.inf}, kind=Noted)
    for name, weight in weights[2].items():
        assert torch.equal(weight, weights[1][name]), name
    assert any(not torch.equal(weight, weights[2][name]) for name, weight in weights[3].items())
    assert all(weight.isfinite().all() for weight in weights[4].values())
    assert stated(trainer.out, "faults") == {"not_finite": 1, "skipped": 1}
    found = valid_account(trainer.out).faults
    assert fault_words(found) == "1 step not finite, 1 step left out (details: efficiency/faults)"


def test_it_goes_back_to_the_last_checkpoint(train):
    """Steps 1 and 2 are kept; 3 and 4 are lost; 5 starts from the checkpoint of 2, with the next batch."""
    states = {}

    class Noted(Faulty):
        def _maybe_log_save_evaluate(self, *args, **kwargs):
            states[self.state.global_step] = trained_weights(self), str(self.optimizer.state_dict()["state"])
            super()._maybe_log_save_evaluate(*args, **kwargs)

    policy = FaultPolicy(on_non_finite="rollback")
    train(policy, {4: math.nan}, kind=Noted, max_steps=5, save_strategy="steps", save_steps=2, save_total_limit=1)
    for name, weight in states[4][0].items():
        assert torch.equal(weight, states[2][0][name]), name
    assert states[4][1] == states[2][1]
    assert states[5][1] != states[4][1]


def test_without_a_checkpoint_to_go_back_to_the_update_is_left_out(train):
    trainer = train(FaultPolicy(on_non_finite="rollback"), {1: math.nan})
    assert stated(trainer.out, "faults") == {"not_finite": 1, "skipped": 1}


def test_a_run_that_does_not_recover_stops(train):
    always = dict.fromkeys(range(2, 30), math.nan)
    with pytest.raises(TrainingCheckError, match=r"^step 12: .* It is the step number 11 of this kind in a row"):
        train(FaultPolicy(on_non_finite="skip"), always, max_steps=20)


def test_a_spike_of_the_loss(train):
    trainer = train(FaultPolicy(on_non_finite="skip", spike=3.0), {12: 10.0}, max_steps=13)
    assert stated(trainer.out, "faults") == {"spikes": 1, "skipped": 1}
    (path,) = trainer.out.glob("efficiency/faults/*.json")
    assert re.search(r'"what": "the loss is \d+\.\d+, \d+\.\d times the median', path.read_text())


class OnDevice(torch.Tensor):
    """On a device in name; every read waits for it."""

    reads = 0

    @property
    def device(self):
        return SimpleNamespace(type="cuda")

    def to(self, where, non_blocking):
        assert (where, non_blocking) == ("cpu", True)
        return self.as_subclass(torch.Tensor)

    def __float__(self):
        OnDevice.reads += 1
        return super().__float__()


@pytest.mark.parametrize(("on_non_finite", "reads"), [("stop", 0), ("skip", 6)])
def test_stop_reads_no_figure_from_a_device_before_the_next_step(monkeypatch, tmp_path, on_non_finite, reads):
    """Three steps, of which the last is not finite; a log, or the step after it, ends the run."""
    waited = []

    class Event:
        def record(self):
            pass

        def synchronize(self):
            waited.append(True)

    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(Event=Event))
    monkeypatch.setattr(OnDevice, "reads", 0)
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(scaler=None), args=SimpleNamespace(process_index=0), processing_class=None
    )
    policy = Faults(FaultPolicy(on_non_finite=on_non_finite), trainer, no_timeline(), lambda: tmp_path, lambda: None)
    for step, norm in enumerate([1.0, 2.0, math.nan]):
        policy.begin_step([])
        policy.norm, policy.losses = (torch.tensor(one).as_subclass(OnDevice) for one in (norm, [0.5]))
        policy.losses = list(policy.losses)
        policy.on_pre_optimizer_step(None, SimpleNamespace(global_step=step), model=torch.nn.Identity())
    assert OnDevice.reads == reads
    if on_non_finite == "stop":
        assert len(waited) == 2
        with pytest.raises(TrainingCheckError, match=r"^step 3: the gradient norm is nan, the loss 0\.5\."):
            policy.settle()
    assert policy.counts["not_finite"] == 1


def test_without_a_policy_it_trains_as_the_class_below(train):
    trainer = train(None, {2: math.nan})
    assert not all(weight.isfinite().all() for weight in trained_weights(trainer).values())


class Full(EfficientTrainer):
    """From its fourth micro-batch on it has no memory for more than ``room`` rows, after the backward has begun."""

    room = 1
    gradients: dict[int, list[torch.Tensor]]
    attempts: list[int]

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = inputs["input_ids"].shape[0]
        self.attempts = [*getattr(self, "attempts", []), rows]
        loss = super().training_step(model, inputs, num_items_in_batch)
        if len(self.attempts) > 3 and rows > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss

    def _clip_grad_norm(self, model):
        found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
        self.gradients = {**getattr(self, "gradients", {}), self.state.global_step: found}
        return super()._clip_grad_norm(model)


def test_a_step_in_halves_has_the_gradients_of_the_whole_one(train):
    """Two micro-batches of four rows: the first is run again too, for an interrupted backward left something in it."""
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 3}
    whole = train(FaultPolicy(), kind=type("Roomy", (Full,), {"room": 9}), **sizes)
    shrunk = train(FaultPolicy(on_oom="shrink"), kind=type("Tight", (Full,), {"room": 1}), **sizes)
    assert shrunk.attempts == [4, 4, 4, 4, 2, *[1] * 8, *[1] * 8]
    ours, theirs = (torch.cat([one.flatten() for one in run.gradients[1]]) for run in (shrunk, whole))
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()
    assert losses(shrunk) == pytest.approx(losses(whole), rel=1e-6)
    report = json.loads((shrunk.out / "efficiency/faults/out_of_memory.step2.rank0.json").read_text())
    avoided = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
    assert (report["would_have_avoided_it"], report["shapes"]["input_ids"][0]) == (avoided, 4)
    assert stated(shrunk.out, "faults") == {"out_of_memory": 2}


def test_out_of_memory_without_a_policy_to_shrink_ends_the_run_with_a_report(train, tmp_path):
    with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 GiB\.$"):
        train(FaultPolicy(), kind=Full)
    assert len(list(tmp_path.glob("out*/efficiency/faults/out_of_memory.step4.rank0.json"))) == 1


def test_the_report_has_what_the_allocator_held_when_it_had_no_more(train, tmp_path, monkeypatch):
    """Before anything is given back, on a device that is a stand-in."""
    held = {"segments": [{"total_size": 20}]}
    device = SimpleNamespace(
        is_available=lambda: True, empty_cache=held["segments"].clear, memory_stats=lambda: {"num_ooms": 1},
        mem_get_info=lambda: (0, 2**30), memory_summary=lambda: "| PyTorch |\n| 20 B |",
        memory=SimpleNamespace(_snapshot=lambda: copy.deepcopy(held)),
    )  # fmt: skip
    monkeypatch.setattr(shrink, "cuda", device)
    with pytest.raises(torch.OutOfMemoryError):
        train(FaultPolicy(), kind=Full)
    (report,) = tmp_path.glob("out*/efficiency/faults/out_of_memory.step4.rank0.json")
    memory = json.loads(report.read_text())["memory"]
    assert (memory["num_ooms"], memory["device"], memory["summary"][1]) == (1, "1.00 GiB", "| 20 B |")
    assert pickle.loads(report.with_suffix(".pickle").read_bytes()) == {"segments": [{"total_size": 20}]}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_one_row_is_not_divided(train, tmp_path, checkpointed):
    sizes = {"per_device_train_batch_size": 1, "checkpointing": checkpointed}
    with pytest.raises(torch.OutOfMemoryError, match="was not divided: it is one row already"):
        train(FaultPolicy(on_oom="shrink"), kind=type("None", (Full,), {"room": 0}), **sizes)
    report = json.loads(next(tmp_path.glob("out*/efficiency/faults/out_of_memory.*.json")).read_text())
    half = report["shapes"]["input_ids"][1] // 2
    avoided = {"train.max_length": half} if checkpointed else {"train.gradient_checkpointing": True}
    assert report["would_have_avoided_it"] == avoided


def test_a_flat_row_is_divided_between_documents():
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2]])
    ids = torch.arange(8)[None]
    pieces = divided({"input_ids": ids, "position_ids": positions}, 2)
    assert [piece["input_ids"].tolist() for piece in pieces] == [[[0, 1, 2]], [[3, 4, 5, 6, 7]]]
    assert len(divided({"input_ids": ids, "position_ids": positions}, 8)) == 3
    assert divided({"input_ids": ids, "position_ids": torch.arange(8)[None]}, 2) is None
    assert divided({"input_ids": ids, "cu_seq_lens_q": torch.tensor([0, 3, 8])}, 2) is None


class SmallFiles(TrainerCallback):
    """While step 2 is saved, the system writes no file beyond ``most`` bytes: torch's own writer fails half-way."""

    def __init__(self, most):
        self.most, self.before = most, resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, self.before[1]))

    def on_step_begin(self, args, state, control, **kwargs):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


@pytest.mark.parametrize("most", [100_000, 400_000], ids=["weights", "optimizer"])
@pytest.mark.parametrize("policy", ["stop", "continue"])
def test_a_checkpoint_that_the_system_does_not_write(train, tmp_path, most, policy):
    small = SmallFiles(most)
    run = {"method": "full", "callbacks": [small], **every(save=1), "save_total_limit": 1, "max_steps": 3}
    try:
        if policy == "stop":
            with pytest.raises(Exception, match=r"[Ff]ile too large|unexpected pos|PytorchStreamWriter"):
                train(FaultPolicy(), **run)
        else:
            trainer = train(FaultPolicy(on_save_error="continue"), **run)
            assert stated(trainer.out, "faults") == {"saves_failed": 1}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, small.before)
    (checkpoint,) = tmp_path.glob("out*/checkpoint-*")
    assert checkpoint.name == ("checkpoint-1" if policy == "stop" else "checkpoint-3")
    assert fault_of(checkpoint, hashes=True) is None
