"""Bytes of one parameter on one of several ranks, by hand."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.sharding import Sharding
from hf_efficient.planning.ranks.shares import Sizes
from hf_efficient.planning.simulation import HeldWeight

# 16 x 10 in float32, computed with in 16 bits: over 3 ranks 6 rows each of FSDP2, 54 elements each of ZeRO-3
TRAINED = HeldWeight("a", (16, 10), 160, 4, 2, trained=True)
FROZEN = HeldWeight("b", (16, 10), 160, 2, 2, trained=False)
PACKED = HeldWeight("c", (160, 1), 320, 1, 1, trained=False, packed=True, quantized=True)
EIGHT = HeldWeight("d", (16, 10), 160, 1, 1, trained=False, quantized=True)


def sizes(strategy, mixed=True, packed=False):
    return Sizes(Sharding(strategy, 3), mixed, packed)


@pytest.mark.parametrize(
    ("strategy", "weight", "held", "gathered"),
    [
        ("ddp", TRAINED, 640, 0),
        ("zero2", TRAINED, 320, 0),  # cast to 16 bits
        ("zero3", TRAINED, 108, 324),
        ("fsdp2", TRAINED, 240, 360),  # kept in float32, gathered in 16 bits, padded to 18 rows
        ("fsdp2", FROZEN, 120, 360),
        ("zero3", PACKED, 160, 0),
        ("fsdp2", PACKED, 54, 162),
        ("zero3", EIGHT, 160, 0),
        ("fsdp2", EIGHT, 160, 0),
    ],
)
def test_a_weight(strategy, weight, held, gathered):
    assert (sizes(strategy).weight(weight), sizes(strategy).gathered(weight)) == (held, gathered)


def test_a_model_with_four_bit_weights_is_left_as_it_is_loaded():
    bfloat16 = HeldWeight("a", (16, 10), 160, 2, 2, trained=True)
    assert sizes("fsdp2").weight(bfloat16) == 6 * 10 * 4
    assert sizes("fsdp2", packed=True).weight(bfloat16) == 6 * 10 * 2


@pytest.mark.parametrize(
    ("strategy", "mixed", "copy"),
    [("zero2", True, 216), ("zero2", False, 216), ("zero3", True, 216), ("zero3", False, 0), ("fsdp2", True, 0)],
)
def test_deepspeeds_own_copy(strategy, mixed, copy):
    assert sizes(strategy, mixed).master(TRAINED) == copy
    assert sizes(strategy, mixed).master(FROZEN) == 0


def test_gradients():
    assert sizes("fsdp2").gradient_shard(TRAINED) == 240
    assert sizes("fsdp2").whole_gradient(TRAINED) == 360
    assert sizes("zero3").gradient_shard(TRAINED) == 108
