"""Shares of parameters and what is offloaded, by hand."""

import pytest

from hf_efficient.estimate.sharding import ModelStates, Sharding, host_bytes, kept_elements, shard_elements


@pytest.mark.parametrize(
    ("strategy", "elements"), [("none", 16_391), ("ddp", 16_391), ("zero2", 2050), ("zero3", 2049), ("fsdp2", 4097)]
)
def test_padding(strategy, elements):
    assert shard_elements(strategy, [(4, 4096), (7,)], 8) == elements


def test_a_scalar_is_padded_to_every_rank():
    assert shard_elements("fsdp2", [(9, 10), ()], 8) == 21


def test_an_offload_that_the_strategy_lacks_is_refused():
    with pytest.raises(ValueError, match=r"^offload_optimizer with 'fsdp2'; it takes zero1, zero2, zero3$"):
        Sharding("fsdp2", 2, offload_optimizer=True)


@pytest.mark.parametrize(
    ("strategy", "micro_batches", "whole"),
    [("fsdp2", 1, False), ("fsdp2", 4, True), ("zero1", 4, True), ("zero2", 4, False), ("zero3", 4, False)],
)
def test_gradients_between_micro_batches(strategy, micro_batches, whole):
    """FSDP2 keeps them whole where it reduces once a step; DeepSpeed does not ask accelerate."""
    assert Sharding(strategy, 8, micro_batches=micro_batches).whole_gradients == whole


@pytest.mark.parametrize(
    ("reuse", "uses", "kept"),
    [
        (0, 2, 0),
        (1, 2, 60),  # the head is used again at once
        (120, 2, 60),  # the last layer would come again after twice the head
        (122, 2, 60 + 100 + 1),
        (420, 2, 60 + 100 + 150),
        (420, 3, 60 + 100 + 100),  # each layer runs three times
        (10_000, 3, 1000),
    ],
)
def test_what_zero_3_keeps_for_the_backward(reuse, uses, kept):
    states = ModelStates(1000, 0, 2, 2, 2, 8, largest_layer=100, staying=60, layer_uses=uses)
    assert kept_elements(states, Sharding("zero3", 2, reuse_elements=reuse)) == kept
    assert kept_elements(states, Sharding("fsdp2", 2)) == 60


@pytest.mark.parametrize(
    ("strategy", "offload", "host"),
    [
        ("zero2", (), 0),
        # 1000 elements on 2 ranks: 500 * (8 + 4) of state and master copy, 500 * 4 of gradients in its dtype.
        ("zero1", ("optimizer",), 8000),
        ("zero2", ("optimizer",), 8000),
        ("zero3", ("optimizer",), 9000),  # and the gradients that were reduced, 500 * 2
        ("zero3", ("parameters",), 1000),
        ("zero3", ("optimizer", "parameters"), 10_000),
        ("fsdp2", ("parameters",), 8000),  # 500 * 2 of weights, which take along 500 * (2 + 12)
    ],
)
def test_what_is_on_the_host(strategy, offload, host):
    sharding = Sharding(strategy, 2, **{f"offload_{one}": True for one in offload})
    assert host_bytes(ModelStates(1000, 0, 2, 2, 2, 8, 4), sharding) == host


def test_what_is_on_the_host_without_a_master_copy_or_with_frozen_weights():
    """500 * 8 of state and 500 * 4 of gradients; 1001 frozen of half a byte on 4 ranks: 251 of them, 125.5 bytes."""
    assert host_bytes(ModelStates(1000, 0, 4, 4, 4, 8), Sharding("zero2", 2, offload_optimizer=True)) == 6000
    assert host_bytes(ModelStates(0, 1001, 2, 0.5, 2, 8), Sharding("fsdp2", 4, offload_parameters=True)) == 126
