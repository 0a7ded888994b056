"""``efficiency.profile`` in a recipe's run: from the section to the account."""

from __future__ import annotations

import pytest

from hf_efficient.accounting.account import load_run
from hf_efficient.callbacks.profilers import (
    CaptureCallback,
    HostMemoryCallback,
    LineTimesCallback,
    MemoryHistoryCallback,
    NvtxCallback,
    PythonProfileCallback,
    TorchTraceCallback,
)
from hf_efficient.errors import SetupError
from hf_efficient.launch.build import instrument_callbacks
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.schema import ProfileSection, Recipe


def recipe(model, source, output, profile, **more):
    return Recipe(
        name="tiny",
        model={"id": str(model)},
        adapter={"r": 4},
        data={"train": [{"path": str(source)}]},
        train={"max_steps": 5, "max_length": 96, "per_device_train_batch_size": 2, "use_cpu": True, "bf16": False},
        output_dir=str(output),
        efficiency={"plan": False, "profile": profile, **more},
    )


def test_a_callback_per_instrument_that_is_switched_on():
    assert instrument_callbacks(ProfileSection()) == []
    section = ProfileSection(
        trace={}, memory={}, python={}, lines=["json:dumps"], host_memory=["json:dumps"], nvtx=True, capture={}
    )
    assert [type(callback) for callback in instrument_callbacks(section)] == [
        TorchTraceCallback,
        MemoryHistoryCallback,
        PythonProfileCallback,
        LineTimesCallback,
        HostMemoryCallback,
        NvtxCallback,
        CaptureCallback,
    ]


def test_a_run_with_instruments(tiny_llama_dir, chats_jsonl, tmp_path):
    trace = {"wait": 1, "warmup": 1, "active": 2, "stacks": False}
    run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", {"trace": trace, "memory": {"at_end": True}}))
    profile = load_run(tmp_path / "out").profile
    assert {one.name: (one.steps, one.note) for one in profile.instruments}["memory"] == (
        0,
        "needs a CUDA device, and there is none",
    )
    assert profile.operators.steps == 2
    assert "Profile" in (tmp_path / "out" / "efficiency" / "report.html").read_text()


def test_a_training_that_raises_still_leaves_its_profile(tiny_llama_dir, chats_jsonl, tmp_path, monkeypatch):
    def breaks(self, *args, **kwargs):
        raise RuntimeError("a fault in the middle")

    monkeypatch.setattr("hf_efficient.trainer.EfficientTrainerMixin.floating_point_ops", breaks)
    with pytest.raises(RuntimeError, match="in the middle"):
        run_recipe(recipe(tiny_llama_dir, chats_jsonl, tmp_path / "out", {"python": {"after_step": 0}}))
    profile = load_run(tmp_path / "out").profile
    assert profile.functions[0].process == "main"
    assert profile.instruments[0].files == ["profile/python.rank0.pstats", "profile/python.rank0.json"]


def test_a_function_that_is_not_there_is_told_before_anything_is_read(tmp_path):
    with pytest.raises(SetupError, match=r"efficiency.profile.lines: json:dump_all: there is no dump_all in it"):
        run_recipe(recipe("no model", "no data", tmp_path / "out", {"lines": ["json:dump_all"]}))
