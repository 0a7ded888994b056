"""What the process has is there again, however the simulation ended."""

from __future__ import annotations

import os
import random

import numpy
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState

from hf_efficient.planning.arguments import process_kept


def draw():
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def seed():
    random.seed(5)
    numpy.random.seed(5)
    torch.manual_seed(5)


def test_the_generators_go_on_where_they_were():
    seed()
    draw()
    expected = draw()
    seed()
    draw()
    with process_kept():
        random.seed(9)
        numpy.random.seed(9)
        torch.manual_seed(9)
        draw()
    assert draw() == expected


def test_variables_are_as_before(monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("REMOVED", "2")
    monkeypatch.delenv("ADDED", raising=False)
    with process_kept():
        os.environ["KEPT"] = "changed"
        os.environ["ADDED"] = "3"
        del os.environ["REMOVED"]
    assert (os.environ["KEPT"], os.environ["REMOVED"], os.environ.get("ADDED")) == ("1", "2", None)


def test_accelerates_state_is_the_same_object_with_the_same_content():
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    with process_kept():
        AcceleratorState._reset_state(reset_partial_state=True)
        assert Accelerator(cpu=True, mixed_precision="bf16").mixed_precision == "bf16"
    assert accelerator.mixed_precision == "no"
    assert accelerator.state.initialized
    assert accelerator.device == torch.device("cpu")


class ZeroThree:
    def is_zero3(self):
        return True


def test_no_process_group(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with process_kept():
        assert not torch.distributed.is_initialized()
    assert torch.distributed.is_initialized()


def test_no_deepspeed_that_would_share_a_model_out():
    from transformers.integrations import deepspeed

    held = ZeroThree()
    deepspeed.set_hf_deepspeed_config(held)
    try:
        with process_kept():
            assert not deepspeed.is_deepspeed_zero3_enabled()
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_after_an_error_too(monkeypatch):
    monkeypatch.delenv("ADDED", raising=False)
    seed()
    expected = draw()
    seed()

    @process_kept()
    def failing():
        os.environ["ADDED"] = "3"
        torch.manual_seed(9)
        raise ValueError("of a simulation")

    with pytest.raises(ValueError, match="of a simulation"):
        failing()
    assert draw() == expected
    assert "ADDED" not in os.environ
