"""What ``auto`` of the fast step's keys means, and what a run says of it."""

import pytest

from hf_efficient.model.fast_step import fast_step_lines, settle_fast_step, settled_options
from tests.conftest import small_recipe

AUTO = {"model": {"id": "m", "attn_implementation": "auto"}, "adapter": {"fused": "auto"}}
AUTO["train"] = {"packing": True, "max_length": 64}


def recipe(**sections):
    return small_recipe(**{**AUTO, **{name: {**AUTO.get(name, {}), **one} for name, one in sections.items()}})


def settled(device="cpu", **fields):
    found = settle_fast_step(recipe(**fields), device)
    return found.model.attn_implementation, found.adapter.fused


def test_auto_on_a_cpu():
    for fields, expected in (
        ({}, ("documents", True)),
        ({"adapter": {"method": "qlora"}}, ("documents", True)),
        ({"train": {"packing": False}}, (None, True)),
        ({"train": {"packing_strategy": "wrapped"}}, (None, True)),
        ({"adapter": {"method": "full"}}, ("documents", False)),
        ({"adapter": {"dora": True}}, ("documents", False)),
        ({"adapter": {"method": "qlora", "quantization": {"bits": 8}}}, ("documents", False)),
        ({"distributed": {"strategy": "fsdp2", "processes": 2}}, ("documents", False)),
    ):
        assert settled(**fields) == expected


@pytest.mark.parametrize(
    ("installed", "train", "expected"),
    [(True, {"bf16": True}, "flash_attention_2"), (True, {"bf16": False}, None), (False, {"bf16": True}, None)],
)
def test_auto_on_a_gpu(installed, train, expected, monkeypatch):
    monkeypatch.setattr("hf_efficient.model.fast_step.is_flash_attn_2_available", lambda: installed)
    assert settled("cuda", train=train) == (expected, False)


def test_a_key_that_says_more_than_auto_stays():
    said = {"model": {"attn_implementation": "eager"}, "adapter": {"fused": False}}
    assert settled(**said) == ("eager", False)


def test_a_run_says_what_is_fast_and_by_which_key():
    (line,) = fast_step_lines(settle_fast_step(recipe(train={"loss_type": "chunked_nll"}), "cpu"))
    for key in ("model.attn_implementation", "adapter.fused", "train.loss_type"):
        assert key in line
    assert fast_step_lines(settle_fast_step(recipe(adapter={"method": "full"}, train={"packing": False}), "cpu")) == []


def test_the_loss_that_auto_means():
    for fields, expected in (
        ({}, "chunked_nll"),
        ({"adapter": {"method": "full"}}, "chunked_nll"),
        ({"train": {"label_smoothing_factor": 0.1}}, "nll"),
        ({"train": {"use_liger_kernel": True}}, "nll"),
        ({"adapter": {"target_modules": ["q_proj", "lm_head"]}}, "nll"),
        ({"distributed": {"strategy": "zero3", "processes": 2}}, "nll"),
        ({"distributed": {"strategy": "fsdp2", "processes": 2}}, "chunked_nll"),
        ({"train": {"loss_type": "dft"}}, "dft"),
    ):
        train = {"loss_type": "auto", **fields.pop("train", {})}
        assert settled_options(recipe(train=train, **fields))["loss_type"] == expected


def test_the_saves_that_auto_means_are_left_to_a_callback():
    assert settled_options(recipe(train={"save_steps": "auto"}))["save_steps"] == 0
    assert settled_options(recipe(train={"save_steps": 50}))["save_steps"] == 50
