"""The instruments in real trainings: what they leave, and that the training does not notice them."""

import gzip
import inspect
import json
from types import SimpleNamespace

import pytest
import torch
from tiny_training import assert_same_run, train_causal
from transformers import Trainer

from hf_efficient.accounting.account import load_run
from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.profilers import (
    CaptureCallback,
    HostMemoryCallback,
    LineTimesCallback,
    MemoryHistoryCallback,
    NvtxCallback,
    PythonProfileCallback,
    SynchronisationsCallback,
    TorchTraceCallback,
)
from hf_efficient.profilers import instrument
from hf_efficient.profilers.torch_trace import TorchTrace
from hf_efficient.trainer import EfficientTrainer


def test_a_trace_in_a_plain_trainer(tiny_dir, tmp_path):
    told = []
    callback = TorchTraceCallback(wait=1, warmup=1, active=2, stacks=False)
    callback._tell = told.append
    train_causal(Trainer, tiny_dir, tmp_path, max_steps=6, callbacks=[callback])
    folder = tmp_path / "efficiency" / "profile"
    trace = "trace.rank0.cycle0.pt.trace.json.gz"
    assert sorted(path.name for path in folder.iterdir()) == ["operators.rank0.json", trace]
    events = json.loads(gzip.decompress((folder / trace).read_bytes()))["traceEvents"]
    steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#2", "ProfilerStep#3"}
    table = json.loads((folder / "operators.rank0.json").read_text())
    assert table["steps"] == 2
    assert {"aten::addmm", "aten::mm"} & {row["name"] for row in table["operators"]}
    (cost,) = told
    assert cost.startswith("profile.trace cost ")
    assert "over 3 steps" in cost


def test_each_cycle_has_its_trace(tiny_dir, tmp_path):
    callback = TorchTraceCallback(tmp_path / "p", wait=0, warmup=1, active=1, repeat=2, stacks=False, flops=False)
    train_causal(Trainer, tiny_dir, tmp_path, max_steps=5, callbacks=[callback])
    names = [f"trace.rank0.cycle{cycle}.pt.trace.json.gz" for cycle in (0, 1)]
    assert sorted(path.name for path in (tmp_path / "p").glob("trace*")) == names
    table = json.loads((tmp_path / "p" / "operators.rank0.json").read_text())
    assert (table["steps"], table["operators"][0]["flops"]) == (2, None)


@pytest.mark.parametrize(
    ("schedule", "said", "traces"),
    [
        ({"wait": 5}, "training ended after 3 steps, before the first that is kept, step 7", 0),
        ({"wait": 1, "active": 4}, "training ended after 1 of the 4 steps of a cycle", 1),
    ],
)
def test_a_training_that_ends_before_the_schedule(tiny_dir, tmp_path, schedule, said, traces):
    callback = TorchTraceCallback(stacks=False, **schedule)
    train_causal(EfficientTrainer, tiny_dir, tmp_path, callbacks=[callback])
    (found,) = load_run(tmp_path).profile.instruments
    assert said in found.note
    assert len(list((tmp_path / "efficiency" / "profile").glob("trace*"))) == traces


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "others"), [(Trainer, [AccountCallback]), (EfficientTrainer, [])])
def test_the_account_tells_cost_and_operators(tiny_dir, tmp_path, kind, others):
    callback = TorchTraceCallback(wait=3, warmup=0, active=2)
    callbacks = [callback, *(other() for other in others)]
    train_causal(kind, tiny_dir, tmp_path, max_steps=8, callbacks=callbacks)
    profile = load_run(tmp_path).profile
    (trace,) = profile.instruments
    assert (trace.name, trace.steps, len(trace.files)) == ("trace", 2, 2)
    assert trace.cost_seconds >= trace.own_seconds > 0
    assert profile.operators.steps == 2


def test_a_fault_does_not_stop_the_training(tiny_dir, tmp_path, monkeypatch, warned):
    def full(self, profiler):
        raise OSError("disk full")

    monkeypatch.setattr(TorchTrace, "_write_cycle", full)
    callback = TorchTraceCallback(wait=0, warmup=0, active=1, repeat=3, stacks=False)  # the first is the last
    trainer = train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=4, callbacks=[callback])
    assert trainer.state.global_step == 4
    assert "ended by a fault: OSError: disk full" in load_run(tmp_path).profile.instruments[0].note
    assert [one for one in warned() if "ends here" in one] == [
        "profile.trace ends here, because of a fault; training continues."
    ]


def test_the_phases_are_ranges_inside_the_steps(tiny_dir, tmp_path, monkeypatch):
    calls = []

    class Marker:
        range_start = staticmethod(lambda name: calls.append(name) or name)
        range_end = staticmethod(lambda name: calls.append(f"/{name}"))
        range_push = staticmethod(calls.append)
        range_pop = staticmethod(lambda: calls.append("/"))

    cuda = SimpleNamespace(nvtx=Marker, is_available=lambda: True)
    monkeypatch.setattr(instrument, "torch", SimpleNamespace(cuda=cuda))
    callback = NvtxCallback()
    train_causal(EfficientTrainer, tiny_dir, tmp_path, max_steps=2, callbacks=[callback])
    first = calls[calls.index("step 1") : calls.index("/step 1")]
    assert [name for name in first if name in ("forward", "backward", "optimizer")] == [
        *("forward", "backward", "optimizer")
    ]
    assert calls.count("/") == sum(not name.startswith(("/", "step ")) for name in calls)


@pytest.mark.slow
def test_all_of_them_leave_the_losses_as_they_are(tiny_dir, tmp_path):
    """But those that take the one place that CPython has for a profiler: of these one at a time."""
    plain = train_causal(Trainer, tiny_dir, tmp_path / "plain", max_steps=7, dataloader_num_workers=1)
    mlp = "transformers.models.llama.modeling_llama:LlamaMLP.forward"
    trace = TorchTraceCallback(wait=1, active=2, stacks=False, memory=True)
    sets = [
        [PythonProfileCallback(), LineTimesCallback([mlp]), MemoryHistoryCallback(at_steps=[2]), CaptureCallback()],
        [trace, NvtxCallback()],
        [HostMemoryCallback([mlp])],
    ]
    for number, callbacks in enumerate(sets):
        folder = tmp_path / str(number)
        profiled = train_causal(
            EfficientTrainer, tiny_dir, folder, max_steps=7, callbacks=callbacks, dataloader_num_workers=1
        )
        assert_same_run(plain, profiled)
        told = {one.name: one.note for one in load_run(folder).profile.instruments}
        assert len(told) == len(callbacks)
        assert not any("fault" in note for note in told.values())
    held = load_run(tmp_path / "2").profile.host_memory
    assert any("modeling_llama.py" in line.place for line in held.lines)
    profile = load_run(tmp_path / "0").profile
    assert {table.process for table in profile.functions} == {"main", "worker 0"}
    assert profile.lines.functions[0].place.endswith("LlamaMLP.forward")


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient.item()
        return gradient


class Curious(Trainer):
    """Reads in the forward by a condition, a conversion and a mask, and in the backward."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        self.is_high = bool(loss.detach() > 100)
        self.seen = float(loss.detach())
        self.seen_as_well = loss.tolist()
        self.ids = inputs["input_ids"][inputs["attention_mask"].bool()]
        return ReadsInBackward.apply(loss)


def census(kind, folder, output_dir, **settings):
    callback = SynchronisationsCallback(after_step=2, steps=2)
    trainer = train_causal(kind, folder, output_dir, callbacks=[callback], max_steps=6, **settings)
    return trainer, callback.facts


def own(facts):
    """``(operator, times)`` of this file's sites, by the text of their line."""
    text = inspect.getsource(inspect.getmodule(Curious)).splitlines()
    sites = [site for site in facts["sites"] if site["file"] == __file__]
    assert not any(site["inside_library"] for site in sites)
    return {text[site["line"] - 1].strip(): (site["operator"], site["count_per_step"]) for site in sites}


@pytest.mark.slow
def test_every_line_of_ones_own_that_reads_is_told(tiny_dir, tmp_path):
    trainer, facts = census(Curious, tiny_dir, tmp_path, gradient_accumulation_steps=2)
    assert (facts["steps"], facts["on_device"]) == (2, False)
    assert own(facts) == {
        "gradient.item()": ("item", 2.0),
        "self.seen_as_well = loss.tolist()": ("tolist", 2.0),
        "self.is_high = bool(loss.detach() > 100)": ("item", 2.0),
        "self.seen = float(loss.detach())": ("item", 2.0),
        'self.ids = inputs["input_ids"][inputs["attention_mask"].bool()]': ("index", 2.0),
    }
    plain = train_causal(Curious, tiny_dir, tmp_path / "plain", max_steps=6, gradient_accumulation_steps=2)
    assert_same_run(trainer, plain)


@pytest.mark.slow
def test_the_trainers_own_reads_are_told_as_the_librarys(tiny_dir, tmp_path):
    """The NaN filter reads twice per micro-batch; without it nothing does in that function."""

    def of_the_epoch(**settings):
        sites = census(EfficientTrainer, tiny_dir, tmp_path, logging_steps=100, **settings)[1]["sites"]
        assert not any(
            name in site["file"] for site in sites for name in ("torch/optim", "hf_efficient", "sft_trainer")
        )
        return [
            (site["operator"], site["count_per_step"], site["inside_library"])
            for site in sites
            if site["function"].rpartition(".")[2] == "_run_epoch"
        ]

    assert of_the_epoch() == [("item", 2.0, True)]
    assert of_the_epoch(logging_nan_inf_filter=False) == []


@pytest.mark.slow
@pytest.mark.parametrize(("callback", "counted"), [((2, 2), 2), ((1, 50), 5)], ids=["over", "ends inside"])
def test_nothing_watches_after_the_counted_steps(tiny_dir, tmp_path, callback, counted):
    callback = SynchronisationsCallback(*callback)
    train_causal(Trainer, tiny_dir, tmp_path, callbacks=[callback], max_steps=6)
    assert callback.facts["steps"] == counted
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert torch.overrides._get_current_function_mode() is None


@pytest.mark.parametrize("counts", [(-1, 1), (0, 0)])
def test_counts_that_are_too_small(counts):
    with pytest.raises(ValueError, match="write at least 0 and 1"):
        SynchronisationsCallback(*counts)
