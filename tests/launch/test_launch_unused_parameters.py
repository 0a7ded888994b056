"""Whether DDP looks for weights without a gradient."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import TrainingArguments

from hf_efficient.launch.build import expect_gradients


class Mixture(nn.Module):
    """A layer whose MLP is a list of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])


@pytest.mark.parametrize(
    ("model", "said", "expected"),
    [
        (nn.Linear(2, 2), None, False),
        (nn.Linear(2, 2), True, True),
        (Mixture(), None, None),  # the Trainer decides
        (Mixture(), False, False),
    ],
)
def test_a_model_without_experts_uses_all_its_weights(tmp_path, model, said, expected):
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, ddp_find_unused_parameters=said)
    expect_gradients(args, model)
    assert args.ddp_find_unused_parameters is expected
