"""Bytes per rank by hand, and those that the ZeRO paper prints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hf_efficient.estimate.sharding import ModelStates, RankBytes, Sharding, kept_elements, rank_bytes

GB = 10**9

PAPER = ModelStates(
    trained=7_500_000_000,
    frozen=0,
    trained_bytes=2,
    frozen_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=8,
    master_bytes=4,
)
LORA = ModelStates(
    trained=40_000_000,
    frozen=8_000_000_000,
    trained_bytes=4,
    frozen_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=8,
    largest_layer=220_000_000,
    staying=525_000_000,
)


@pytest.mark.parametrize(
    ("strategy", "ranks", "printed"), [("none", 1, 120.0), ("zero1", 64, 31.4), ("zero2", 64, 16.6), ("zero3", 64, 1.9)]
)
def test_figure_1_of_the_zero_paper(strategy, ranks, printed):
    held = rank_bytes(PAPER, Sharding(strategy, ranks))
    total = held.parameter_bytes + held.gradient_bytes + held.optimizer_bytes
    assert round(total / GB, 1) == printed


def test_frozen_weights_have_no_gradient_and_no_state():
    """40 million trained in fp32 on 8 billion in 16 bits: 0.16 + 16 GB, 0.16 GB, 0.32 GB."""
    assert rank_bytes(LORA, Sharding("none")) == RankBytes(16_160_000_000, 160_000_000, 320_000_000, 0, 0, 0, 0)


@pytest.mark.parametrize(("view", "buckets"), [(False, 160_000_000), (True, 0)])
def test_ddp_copies_the_gradients_into_buckets(view, buckets):
    held = rank_bytes(LORA, Sharding("ddp", 8, gradient_as_bucket_view=view))
    assert held == RankBytes(16_160_000_000, 160_000_000, 320_000_000, buckets, 0, 0, 0)


def test_zero_1_and_2():
    """n = 8: 5 million of 40 with a rank. Buckets of 500 million gradients of 4 bytes, two where they overlap; of the
    40 million that there are one copy.
    """
    assert rank_bytes(LORA, Sharding("zero1", 8)) == RankBytes(
        16_160_000_000, 160_000_000, 40_000_000, 2_160_000_000, 0, 0, 0
    )
    assert rank_bytes(LORA, Sharding("zero2", 8, overlap_comm=True)) == RankBytes(
        16_160_000_000, 20_000_000, 40_000_000, 4_160_000_000, 0, 0, 0
    )


def test_the_weights_are_sharded():
    """(160 + 16,000) / 8 = 2,020 MB a rank. All weights are 16,160 MB for 8,040 million elements, 2.00995 bytes each.

    Gathered under FSDP2: 525 + 2 * 220 = 965 million; under ZeRO-3 the head and a layer, 745 million, as the head of
    525 counts twice and so is more than the 1,000 million of reuse; with 2,000 million 525 + 220 + 950 / 2 = 1,220, or
    where layers are run again 525 + 220 + 950 / 3 = 1,061.666666. One bucket there, overlapping or not, and
    a copy of it.
    """
    states = LORA
    fsdp2 = rank_bytes(states, Sharding("fsdp2", 8))
    assert fsdp2 == RankBytes(2_020_000_000, 20_000_000, 40_000_000, 0, 1_939_601_991, 0, 0)
    zero3 = rank_bytes(states, Sharding("zero3", 8, overlap_comm=True, bucket_elements=16_000_000))
    assert zero3 == RankBytes(2_020_000_000, 20_000_000, 40_000_000, 128_000_000, 1_497_412_936, 0, 0)
    without = rank_bytes(states, Sharding("zero3", 8, reuse_elements=0))
    assert without.gathered_bytes == 1_497_412_936
    longer = Sharding("zero3", 8, reuse_elements=2_000_000_000)
    assert rank_bytes(states, longer).gathered_bytes == 2_452_139_304
    assert rank_bytes(replace(states, layer_uses=3), longer).gathered_bytes == 2_133_897_180


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


@pytest.mark.parametrize(
    ("strategy", "each", "gradients"),
    [
        ("fsdp2", False, 160_000_000),
        ("fsdp2", True, 20_000_000),
        ("zero1", False, 160_000_000),
        ("zero2", False, 20_000_000),
        ("zero3", False, 20_000_000),
    ],
)
def test_gradients_between_micro_batches(strategy, each, gradients):
    """FSDP2 keeps them whole where it reduces once a step; DeepSpeed does not ask accelerate."""
    sharding = Sharding(strategy, 8, micro_batches=4, sync_each_batch=each)
    assert rank_bytes(LORA, sharding).gradient_bytes == gradients


def test_no_more_is_gathered_than_there_is():
    small = ModelStates(100, 900, 2, 2, 2, 8, largest_layer=300)
    assert rank_bytes(small, Sharding("zero3", 2)).gathered_bytes == 2000
    assert rank_bytes(small, Sharding("fsdp2", 2)).gathered_bytes == 1200
    assert rank_bytes(ModelStates(0, 0, 2, 2, 2, 8), Sharding("fsdp2", 2)).gathered_bytes == 0


@pytest.mark.parametrize(
    ("strategy", "gradients", "host"),
    [
        # 1000 elements on 2 ranks: 500 * (8 + 4) of state and master copy, 500 * 4 of gradients in its dtype.
        ("zero1", 2000, 8000),
        ("zero2", 0, 8000),
        # And the gradients that were reduced, 500 * 2.
        ("zero3", 0, 9000),
    ],
)
def test_the_optimizer_on_the_host(strategy, gradients, host):
    states = ModelStates(1000, 0, 2, 2, 2, 8, 4)
    on_device = rank_bytes(states, Sharding(strategy, 2))
    assert (on_device.optimizer_bytes, on_device.step_bytes, on_device.host_bytes) == (6000, 2000, 0)
    held = rank_bytes(states, Sharding(strategy, 2, offload_optimizer=True))
    assert (held.gradient_bytes, held.optimizer_bytes, held.step_bytes, held.host_bytes) == (gradients, 0, 0, host)
    assert held.parameter_bytes == on_device.parameter_bytes


def test_zero_2_without_a_master_copy_has_its_gradients_on_the_host():
    """500 * 8 of state and 500 * 4 of gradients."""
    held = rank_bytes(ModelStates(1000, 0, 4, 4, 4, 8), Sharding("zero2", 2, offload_optimizer=True))
    assert (held.gradient_bytes, held.host_bytes) == (0, 6000)


def test_parameters_on_the_host():
    """1000 elements on 2 ranks. ZeRO-3: 500 * 2 of weights. FSDP2 takes along 500 * (2 + 12)."""
    states = ModelStates(1000, 0, 2, 2, 2, 8, 4, largest_layer=100)
    zero3 = rank_bytes(states, Sharding("zero3", 2, offload_parameters=True, bucket_elements=0, reuse_elements=0))
    assert zero3 == RankBytes(0, 1000, 6000, 0, 400, 2000, 1000)
    both = Sharding("zero3", 2, offload_parameters=True, offload_optimizer=True, bucket_elements=0, reuse_elements=0)
    assert rank_bytes(states, both) == RankBytes(0, 0, 0, 0, 400, 0, 10_000)
    fsdp2 = rank_bytes(states, Sharding("fsdp2", 2, offload_parameters=True))
    assert fsdp2 == RankBytes(0, 0, 0, 0, 400, 0, 8000)
    waiting = rank_bytes(states, Sharding("fsdp2", 2, offload_parameters=True, micro_batches=2))
    assert waiting == RankBytes(0, 2000, 0, 0, 400, 0, 8000)


def test_weights_stored_in_fp32_and_gathered_in_16_bits():
    """1000 elements on 2 ranks: 500 * 4 bytes are held, two layers of 100 are gathered at 2 bytes."""
    states = ModelStates(1000, 0, 4, 4, 4, 8, largest_layer=100, gathered_bytes=2)
    held = rank_bytes(states, Sharding("fsdp2", 2))
    assert (held.parameter_bytes, held.gathered_bytes) == (2000, 400)


def test_quantized_weights_round_up_to_bytes():
    """1001 frozen of half a byte on 4 ranks: 251 of them, 125.5 bytes."""
    assert rank_bytes(ModelStates(0, 1001, 2, 0.5, 2, 8), Sharding("fsdp2", 4)).parameter_bytes == 126


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((-1, 0, 2, 2, 2, 8), "trained of -1"),
        ((1, 0, float("inf"), 2, 2, 8), "trained_bytes of inf"),
        ((1, 2, 2, 2, 2, 8, 0, 3, 1), "largest_layer 3 and staying 1 of 3 elements"),
    ],
)
def test_impossible_states_are_refused(arguments, told):
    with pytest.raises(ValueError, match=f"^{told}$"):
        ModelStates(*arguments)
