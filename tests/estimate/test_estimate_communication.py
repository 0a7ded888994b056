"""Shares of parameters, what is offloaded, and bytes and seconds of communication, by hand."""

import pytest

from hf_efficient.estimate.sharding import (
    Collective,
    ModelStates,
    Sharding,
    communication_seconds,
    hidden_seconds,
    host_bytes,
    kept_elements,
    overlap_window_seconds,
    sent_bytes,
    shard_elements,
    step_collectives,
)

# 400 of 1000 million elements are trained: gradients 800 MB, trained weights 800 MB, all weights 2000 MB.
STATES = ModelStates(
    trained=400_000_000,
    frozen=600_000_000,
    trained_bytes=2,
    frozen_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=8,
    largest_layer=100_000_000,
    staying=200_000_000,
)
MB = 1_000_000


@pytest.mark.parametrize(("kind", "factor"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring(kind, factor):
    """8 ranks, 800 MB, twice: 7 / 8 * 1600 = 1400 MB each way."""
    assert sent_bytes(Collective(kind, "gradients", 800 * MB, 1, 2), 8) == factor * 1400 * MB
    assert sent_bytes(Collective(kind, "gradients", 800 * MB, 1, 2), 1) == 0


def sent(strategy: str, **settings) -> float:
    """MB that each of 8 ranks sends in a step of 4 micro-batches."""
    sharding = Sharding(strategy, 8, micro_batches=4, **settings)
    return sum(sent_bytes(one, 8) for one in step_collectives(STATES, sharding)) / MB


@pytest.mark.parametrize(
    ("strategy", "settings", "expected"),
    [
        ("ddp", {}, 1400),  # 2 * 7/8 * 800
        ("zero1", {}, 1400 + 700),  # and 7/8 * 800 of weights
        ("zero2", {}, 4 * 1400 + 700),
        # 7/8 * (2000 + 2000) of weights and 700 of gradients in each of 4.
        ("zero3", {"reuse_elements": 0}, 4 * (3500 + 700)),
        # The head of 200 million counts twice: it alone stays, 7/8 * (2000 + 1600).
        ("zero3", {"reuse_elements": 400_000_000}, 4 * (3150 + 700)),
        # The head, a layer of 100 million and (600 - 400) / 2 of layers stay, 400 million: 7/8 * (2000 + 1200).
        ("zero3", {"reuse_elements": 600_000_000}, 4 * (2800 + 700)),
        # 600 million stay: 7/8 * (2000 + 800). And with the double reuse all.
        ("zero3", {}, 4 * (2450 + 700)),
        ("zero3", {"reuse_elements": 2_000_000_000}, 4 * (1750 + 700)),
        # 200 million of the head stay: 7/8 * (2000 + 1600).
        ("fsdp2", {}, 4 * 3150 + 700),
    ],
)
def test_a_step(strategy, settings, expected):
    assert sent(strategy, **settings) == pytest.approx(expected, rel=1e-12)


def test_what_is_sent_is_what_is_gathered():
    """100 elements of 4 bytes, gathered at 2: 200 bytes forward and again backward, 400 of gradients."""
    states = ModelStates(100, 0, 4, 4, 4, 8, gathered_bytes=2)
    made = step_collectives(states, Sharding("fsdp2", 2))
    assert [one.payload_bytes for one in made] == [200, 200, 400]
    assert step_collectives(states, Sharding("fsdp2", 1)) == ()
    # All weights stay from forward to backward, and none is trained.
    frozen = ModelStates(trained=0, frozen=100, trained_bytes=2, frozen_bytes=2, gradient_bytes=2, optimizer_bytes=8)
    made = step_collectives(frozen, Sharding("zero3", 2), layers=24)
    assert [(one.of, one.payload_bytes, one.messages) for one in made] == [("weights", 200, 25)]


def messages(strategy: str, **settings) -> list[tuple[str, int, int]]:
    made = step_collectives(STATES, Sharding(strategy, 2, micro_batches=3, **settings), layers=24)
    return [(one.of, one.messages, one.times) for one in made]


def test_messages():
    """800 MB in buckets of 26.2144 MB are 31; 400 million elements in buckets of 150 million 3; two groups of them."""
    assert messages("ddp") == [("gradients", 31, 1)]
    assert messages("zero1", bucket_elements=150 * MB) == [("gradients", 3, 1), ("weights", 2, 1)]
    assert messages("zero2", bucket_elements=500 * MB) == [("gradients", 1, 3), ("weights", 2, 1)]
    assert messages("zero3", bucket_elements=150 * MB) == [("weights", 25, 3), ("weights", 24, 3), ("gradients", 3, 3)]
    assert messages("fsdp2") == [("weights", 25, 3), ("weights", 24, 3), ("gradients", 25, 1)]


def test_seconds():
    """1400 MB at 100 GB/s are 14 ms; 32 times 20 us are 0.64 ms; and half of the bytes, 3 times 2 messages: 21.12."""
    first = Collective("all_reduce", "gradients", 800 * MB, 32, 1)
    assert communication_seconds([first], 8, 100e9, 20e-6) == pytest.approx(0.01464, rel=1e-12)
    second = Collective("all_gather", "weights", 800 * MB, 2, 3)
    assert communication_seconds([first, second], 8, 100e9, 20e-6) == pytest.approx(0.01464 + 0.02112, rel=1e-12)
    assert communication_seconds([], 8, 100e9, 20e-6) == 0


def test_what_computation_hides():
    """All beside which it may run, but not the last message of ten, which has nothing beside it."""
    cases = [(2.0, 1.2, 10), (2.0, 5.0, 10), (2.0, 5.0, 1), (0.0, 1.0, 0)]
    assert [hidden_seconds(*case) for case in cases] == pytest.approx([1.2, 1.8, 0.0, 0.0])


@pytest.mark.parametrize(
    ("strategy", "settings", "window"),
    [
        ("ddp", {"micro_batches": 4}, 1.0),  # two thirds of 6 / 4
        ("zero1", {"overlap_comm": True, "micro_batches": 4}, 1.0),  # as ddp
        ("zero2", {"overlap_comm": True, "micro_batches": 4}, 4.0),  # two thirds of all four
        ("zero2", {"micro_batches": 4}, 0.0),
        ("zero3", {}, 6.0),
        ("fsdp2", {}, 6.0),
    ],
)
def test_what_it_may_run_beside(strategy, settings, window):
    assert overlap_window_seconds(Sharding(strategy, 8, **settings), 6.0) == pytest.approx(window)


def test_padding():
    elements = {"none": 16_391, "ddp": 16_391, "zero2": 2050, "zero3": 2049, "fsdp2": 4097}
    assert {strategy: shard_elements(strategy, [(4, 4096), (7,)], 8) for strategy in elements} == elements
    assert shard_elements("fsdp2", [(9, 10), ()], 8) == 21  # a scalar is padded to every rank


def test_gradients_between_micro_batches():
    """FSDP2 keeps them whole where it reduces once a step; DeepSpeed does not ask accelerate."""
    whole = {("fsdp2", 1): False, ("fsdp2", 4): True, ("zero1", 4): True, ("zero2", 4): False, ("zero3", 4): False}
    assert {case: Sharding(case[0], 8, micro_batches=case[1]).whole_gradients for case in whole} == whole


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
