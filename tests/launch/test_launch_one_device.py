"""A process alone that sees several GPUs; none is here, so what transformers finds is put in its place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainingArguments

from hf_efficient.launch.arguments import one_device_remark, training_arguments
from hf_efficient.recipe.load import load_recipe


@pytest.mark.parametrize("found", [0, 1, 8])
def test_a_step_takes_the_rows_that_the_recipe_says(monkeypatch, found):
    def devices(args):
        args._n_gpu = found
        return torch.device("cpu")

    monkeypatch.setattr(TrainingArguments, "_setup_devices", property(devices))
    args = training_arguments(load_recipe("quickstart/lora", ["train.per_device_train_batch_size=3"]))
    assert args.train_batch_size == 3
    assert args.n_gpu == min(found, 1)


@pytest.mark.parametrize(
    ("processes", "kind", "count", "told"),
    [(1, "cuda", 8, True), (1, "cuda", 1, False), (8, "cuda", 8, False), (1, "cpu", 8, False)],
)
def test_gpus_that_are_left_idle_are_told(processes, kind, count, told):
    args = SimpleNamespace(world_size=processes, device=torch.device(kind))
    remark = one_device_remark(args, count)
    assert (remark is not None) == told
    if told:
        assert remark.startswith("one process trains on the first of 8 GPUs; `hf-efficient train`")
