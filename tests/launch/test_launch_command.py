from __future__ import annotations

from pathlib import Path

import pytest

from hf_efficient.launch import command
from hf_efficient.launch.command import layout_of, printable
from hf_efficient.recipe.schema import Recipe


def recipe(processes=1, **train) -> Recipe:
    return Recipe(
        name="t",
        model={"id": "m"},
        data={"train": [{"path": "x"}]},
        train=train,
        distributed={"processes": processes},
        output_dir="o",
    )


def accelerate_command(loaded, argument, overrides, *, device_count, cores, **more):
    layout = layout_of(loaded, device_count=device_count, cores=cores)
    return command.accelerate_command(loaded, argument, overrides, layout, **more)


@pytest.fixture(autouse=True)
def _plain_accelerate(monkeypatch):
    monkeypatch.setattr(command, "_accelerate", lambda: "accelerate")
    monkeypatch.setattr(command, "FLAGS_ALONE", Path("/flags.yaml"))


def test_one_process():
    got = accelerate_command(recipe(), "r.yaml", ["a.b=1 2", "--resume"], device_count=0, cores=6)
    assert printable(got) == (
        "accelerate launch --quiet --config_file=/flags.yaml --num_machines=1 --num_processes=1 --mixed_precision=bf16 "
        "--dynamo_backend=no "
        "--num_cpu_threads_per_process=6 -m hf_efficient.train r.yaml 'a.b=1 2' --resume"
    )


@pytest.mark.parametrize(
    ("train", "precision"),
    [({"fp16": True}, "fp16"), ({"bf16": False}, "no"), ({"bf16": True}, "bf16"), ({}, "bf16")],
)
def test_the_precision_is_the_training_arguments(train, precision):
    assert f"--mixed_precision={precision}" in accelerate_command(recipe(**train), "r", [], device_count=0, cores=2)


def test_processes_named_and_automatic():
    assert "--multi_gpu" not in accelerate_command(recipe("auto"), "r", [], device_count=0, cores=2)
    four = accelerate_command(recipe("auto"), "r", [], device_count=4, cores=9)
    assert "--num_processes=4" in four
    assert "--multi_gpu" in four
    assert "--num_cpu_threads_per_process=2" in four
    assert "--num_processes=2" in accelerate_command(recipe(2), "r", [], device_count=8, cores=1)


def test_another_module_can_be_launched_the_same_way():
    got = accelerate_command(recipe(), "r.yaml", [], device_count=0, cores=1, module="a.b")
    assert got[-3:] == ["-m", "a.b", "r.yaml"]
