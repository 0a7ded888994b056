from __future__ import annotations

import torch
from torch import nn

from hf_efficient.simulate.blank import Blank, make_blank


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 10, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("table", torch.ones(3, 5).t())
        self.register_parameter("nothing", None)
        self.register_buffer("none", None)


def test_parameters_and_buffers_become_blank_and_keep_what_they_are():
    with torch.device("meta"):
        model = Tied()
    make_blank(model)
    assert all(isinstance(one, Blank) for one in [*model.parameters(), *model.buffers()])
    assert all(isinstance(one, nn.Parameter) for one in model.parameters())
    assert model.head.weight is model.embedding.weight
    assert (model.head.weight.dtype, model.head.weight.requires_grad) == (torch.bfloat16, True)
    assert not model.head.bias.requires_grad
    assert (tuple(model.table.shape), model.table.stride()) == ((5, 3), (1, 5))
    assert model.nothing is None
    assert model.none is None


def test_what_has_values_keeps_them():
    with torch.device("meta"):
        model = Tied()
    model.table = torch.arange(3)
    kept = model.head.bias = nn.Parameter(torch.ones(10))
    make_blank(model)
    assert model.head.bias is kept
    assert model.table.tolist() == [0, 1, 2]
    assert isinstance(model.embedding.weight, Blank)
