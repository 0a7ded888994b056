"""Shares of parameters by hand; what cannot be is refused."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.sharding import Sharding, shard_elements


@pytest.mark.parametrize(
    ("strategy", "elements"), [("none", 16_391), ("ddp", 16_391), ("zero1", 2050), ("zero2", 2050), ("zero3", 2049)]
)
def test_padding(strategy, elements):
    assert shard_elements(strategy, [(4, 4096), (7,)], 8) == elements


def test_padding_of_the_first_dimension():
    assert shard_elements("fsdp2", [(4, 4096), (7,)], 8) == 4097
    assert shard_elements("fsdp2", [(9, 10), ()], 8) == 21


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"strategy": "zero4"}, "strategy 'zero4'; write one of none, ddp, zero1, zero2, zero3, fsdp2"),
        ({"strategy": "none", "ranks": 2}, "2 ranks with strategy 'none'"),
        ({"strategy": "ddp", "ranks": 0}, "0 ranks with strategy 'ddp'"),
        ({"strategy": "ddp", "ranks": 2, "micro_batches": 0}, "0 micro-batches"),
        ({"strategy": "ddp", "offload_optimizer": True}, "offload_optimizer with 'ddp'; it takes zero1, zero2, zero3"),
        ({"strategy": "fsdp2", "offload_optimizer": True}, "offload_optimizer with 'fsdp2'; it takes zero1"),
        ({"strategy": "zero2", "offload_parameters": True}, "offload_parameters with 'zero2'; it takes zero3 or fsdp2"),
    ],
)
def test_impossible_shardings_are_refused(arguments, told):
    with pytest.raises(ValueError, match=f"^{told}"):
        Sharding(**arguments)
