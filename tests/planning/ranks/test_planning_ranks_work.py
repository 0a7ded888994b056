"""Which operators a rank runs."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.sharding import ModelStates, Sharding
from hf_efficient.planning.ranks.rank import rank_operators
from hf_efficient.planning.simulation import Rank
from hf_efficient.records.device import OperatorWork

STATES = ModelStates(100, 0, 2, 2, 2, 8)
STEP = OperatorWork("aten::_fused_adamw_", "optimizer", "fp32", 0, 800, 400, 1)
PRODUCT = OperatorWork("aten::mm", "matmul", "bf16", 1000, 80, 40, 2)


def operators(*settings, **offload):
    rank = Rank(Sharding(*settings, **offload), STATES, 1) if settings else None
    return list(rank_operators([PRODUCT, STEP], rank))


def test_alone_and_under_ddp_all_of_them():
    assert operators() == operators("ddp", 4) == [PRODUCT, STEP]


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "fsdp2"])
def test_the_optimizer_steps_on_a_share(strategy):
    product, step = operators(strategy, 4)
    assert product == PRODUCT
    assert (step.read_bytes, step.written_bytes) == (200, 100)


def test_a_step_on_the_host_is_none_of_the_devices():
    assert operators("zero2", 4, offload_optimizer=True) == [PRODUCT]
    assert operators("fsdp2", 4, offload_parameters=True) == [PRODUCT]
