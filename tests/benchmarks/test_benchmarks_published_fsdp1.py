"""What FSDP1 keeps of frozen layers, which `published_runs.py` adds to its plans, seen in torch's own FSDP1."""

import datetime
import functools
import gc

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.utils.checkpoint import checkpoint

from hf_efficient.simulate.tensor_log import TensorLog

LAYERS, ROWS, WIDTH = 3, 5, 16


@pytest.fixture
def one_rank():
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
    yield
    distributed.destroy_process_group()


class Checkpointed(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, hidden):
        for layer in self.layers:
            hidden = checkpoint(layer, hidden, use_reentrant=True)
        return hidden


def hidden_states_at_the_end(sharded, trained):
    """Tensors of a hidden state's shape that live where the first layer's backward has ended."""
    wrap = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu")) if sharded else (lambda one: one)
    layers = [torch.nn.Linear(WIDTH, WIDTH).requires_grad_(trained) for _ in range(LAYERS)]
    model = wrap(Checkpointed(map(wrap, layers)))
    log, found = TensorLog(), []

    def note(grad):
        found.append(sum(life.freed_at is None and life.shape == (ROWS, WIDTH) for life in log.lives))

    gc.disable()  # which would free them early, in a training at any moment
    try:
        with log:
            values = torch.zeros(ROWS, WIDTH, requires_grad=True)
            values.register_hook(note)
            model(values * 1.0).sum().backward()
    finally:
        gc.enable()
    return found[0]


@pytest.mark.parametrize(("trained", "more"), [(False, 2), (True, 0)])
def test_fsdp1_keeps_two_hidden_states_of_a_frozen_layer(one_rank, trained, more):
    added = hidden_states_at_the_end(True, trained) - hidden_states_at_the_end(False, trained)
    assert added == more * LAYERS
