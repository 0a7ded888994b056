from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from hf_efficient.recording.activations import kept_modes, kept_random_state


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@kept_random_state()
def drawing_and_failing():
    draw()
    return 1 / 0


def switching_and_failing(model):
    with kept_modes(model):
        model.train()
        model[0].eval()
        return 1 / 0


def test_generators_are_as_before_even_after_an_error():
    with kept_random_state():
        expected = draw()
    with kept_random_state("cpu"):
        assert draw() == expected
    with pytest.raises(ZeroDivisionError):
        drawing_and_failing()
    with kept_random_state():
        assert draw() == expected


def test_modes_are_as_before_module_by_module():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout(), nn.Linear(1, 1))
    model[1].eval()
    with pytest.raises(ZeroDivisionError):
        switching_and_failing(model)
    assert [module.training for module in model.modules()] == [True, True, False, True]
