"""What is left to the machine: the products of 4-bit layers, and TRL's default of bfloat16."""

from __future__ import annotations

import os

import pytest
import torch

from hf_efficient.launch import arguments as precision
from hf_efficient.launch.arguments import emulation_remark, leave_bf16_off, settle_compute_dtype, training_arguments
from hf_efficient.recipe.load import load_recipe

CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "name: a\nmodel: {id: m}\nadapter: {method: qlora}\ndata: {train: [{path: a.jsonl}]}\noutput_dir: out\n"
    )
    return lambda *overrides: load_recipe(path, list(overrides))


@pytest.fixture
def machine(monkeypatch):
    def set_machine(*, emulates):
        for module in ("precision", "arguments"):
            monkeypatch.setattr(f"hf_efficient.launch.{module}.cpu_emulates_bf16", lambda: emulates)

    return set_machine


def settled(recipe, device=CPU):
    return settle_compute_dtype(recipe, device).adapter.quantization.compute_dtype


def test_auto_is_what_the_cpu_multiplies_in(recipe, machine):
    machine(emulates=True)
    assert settled(recipe()) == "float32"
    machine(emulates=False)
    assert settled(recipe()) == "bfloat16"


@pytest.mark.parametrize(("has_bf16", "expected"), [(True, "bfloat16"), (False, "float16")])
def test_auto_on_a_gpu_is_what_it_computes_in_itself(recipe, monkeypatch, has_bf16, expected):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16 or including_emulation)
    assert settled(recipe(), torch.device("cuda", 0)) == expected


def test_what_the_recipe_says_stays(recipe, machine):
    machine(emulates=True)
    for said in (
        recipe("adapter.quantization.compute_dtype=bfloat16"),
        recipe("adapter.quantization.bits=8"),
        recipe("adapter.method=lora"),
    ):
        assert settle_compute_dtype(said, CPU) is said


def test_a_cpu_that_emulates_bfloat16_trains_without_where_the_recipe_is_silent(recipe, machine, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # of the launcher, which takes TRL's default for granted
    machine(emulates=True)
    args = training_arguments(recipe())
    assert (args.bf16, args.mixed_precision) == (False, "no")


@pytest.mark.parametrize("said", ["train.bf16=true", "train.bf16=false"])
def test_the_recipe_s_own_word_stays(recipe, machine, monkeypatch, said):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    machine(emulates=True)
    assert training_arguments(recipe(said)).bf16 is (said == "train.bf16=true")


def test_a_cpu_with_bfloat16_keeps_trl_s_default(recipe, machine):
    machine(emulates=False)
    assert training_arguments(recipe()).bf16 is True


def test_float16_is_left_alone(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    options = {"fp16": True}
    leave_bf16_off(options)
    assert (options, os.environ["ACCELERATE_MIXED_PRECISION"]) == ({"fp16": True}, "fp16")


def test_what_is_emulated_is_told_with_what_to_write(recipe, machine):
    machine(emulates=True)
    asked = recipe("train.bf16=true", "model.dtype=bfloat16", "adapter.quantization.compute_dtype=bfloat16")
    assert emulation_remark(asked, CPU) == (
        "this CPU emulates bfloat16, many times slower than float32: write train.bf16: false, model.dtype: float32, "
        "adapter.quantization.compute_dtype: auto"
    )
    assert emulation_remark(settle_compute_dtype(recipe(), CPU), CPU) == ""
    assert emulation_remark(asked, torch.device("cuda", 0)) == ""
    machine(emulates=False)
    assert emulation_remark(asked, CPU) == ""


def test_it_is_read_off_the_machine(monkeypatch):
    from hf_efficient.facts import environment as devices

    monkeypatch.setattr(devices.platform, "machine", lambda: "x86_64")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert devices.cpu_emulates_bf16()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not devices.cpu_emulates_bf16()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(devices.platform, "machine", lambda: "aarch64")
    assert not devices.cpu_emulates_bf16()  # torch does not tell: nothing is changed
    assert precision.cpu_emulates_bf16 is devices.cpu_emulates_bf16
