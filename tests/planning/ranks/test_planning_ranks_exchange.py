"""What a rank waits for, by hand."""

import pytest

from hf_efficient.estimate.sharding import ModelStates, Sharding
from hf_efficient.planning.ranks import rank as exchange_module
from hf_efficient.planning.ranks.rank import exchange_of, host_bytes_moved
from hf_efficient.planning.simulation import Rank

# 400 of 1000 million elements are trained, all in 16 bits.
STATES = ModelStates(400_000_000, 600_000_000, 2, 2, 2, 8, largest_layer=100_000_000, staying=200_000_000)
MB = 1_000_000


@pytest.fixture(autouse=True)
def _links(monkeypatch):
    """1 GB/s among ranks and with the host, and no overhead."""
    monkeypatch.setattr(exchange_module, "collective_bandwidth", lambda name, ranks: 1e9 if name == "Toy" else None)
    monkeypatch.setattr(exchange_module, "host_bandwidth", lambda name: 1e9 if name == "Toy" else None)
    monkeypatch.setattr(exchange_module, "overhead_seconds", lambda figure: 0.0)


def found(strategy, computing, device="Toy", **settings):
    return exchange_of(Rank(Sharding(strategy, 8, **settings), STATES, layers=8), device, computing)


def test_ddp_and_an_optimizer_on_the_host():
    """1400 MB in 31 messages; of 1.5 s of computation in one micro-batch 1 s is backward."""
    told = found("ddp", 1.5)
    assert told.seconds == pytest.approx(1.4)
    assert told.exposed_seconds == pytest.approx(0.4)
    # An eighth of 400 million elements: 100 MB of gradients down, 100 of weights up.
    plain, moved = found("zero2", 1.0), found("zero2", 1.0, offload_optimizer=True)
    assert moved.seconds - plain.seconds == pytest.approx(0.2)
    assert moved.exposed_seconds - plain.exposed_seconds == pytest.approx(0.2)
    rank = Rank(Sharding("zero2", 1, offload_optimizer=True), STATES, layers=8)
    assert exchange_of(rank, "Toy", 1.0).seconds == pytest.approx(1.6)
    assert exchange_of(rank, "Unknown", 1.0).notes == (
        "no time: how fast it exchanges data with the host is not known",
    )


@pytest.mark.parametrize(
    ("strategy", "computing", "seconds", "exposed"),
    [
        # ZeRO-1, 4 micro-batches in 3 s: 1400 MB of gradients beside two thirds of the last, 0.5 s; 700 of weights.
        ("zero1", 3.0, 1.4 + 0.7, 0.9 + 0.7),
        # ZeRO-2: four times 1400 MB beside two thirds of all, 2 s.
        ("zero2", 3.0, 5.6 + 0.7, 3.6 + 0.7),
        # However long it computes: the last message, and the weights.
        ("zero1", 1000.0, 1.4 + 0.7, 0.35 + 0.7),
        ("zero2", 1000.0, 5.6 + 0.7, 0.35 + 0.7),
    ],
)
def test_weights_of_zero_are_waited_for_in_full(strategy, computing, seconds, exposed):
    """400 million elements in buckets of 100 million: 4 messages of ZeRO-1, 16 of ZeRO-2, each of 0.35 s."""
    told = found(strategy, computing, micro_batches=4, overlap_comm=True, bucket_elements=100 * MB)
    assert (told.seconds, told.exposed_seconds) == (pytest.approx(seconds), pytest.approx(exposed))


@pytest.mark.parametrize(
    ("strategy", "settings", "megabytes"),
    [
        ("ddp", {}, 0),
        # an eighth of 2000 MB twice in each of 3 micro-batches, less what stays, 200 of 1000 elements; 100 of gradients
        ("fsdp2", {"offload_parameters": True, "micro_batches": 3}, 3 * 250 * 1.8 + 100),
        ("zero3", {"offload_parameters": True, "reuse_elements": 0}, 500),
        ("zero3", {"offload_parameters": True, "offload_optimizer": True, "reuse_elements": 0}, 500 + 200),
    ],
)
def test_what_crosses_to_the_host(strategy, settings, megabytes):
    assert host_bytes_moved(STATES, Sharding(strategy, 8, **settings)) == pytest.approx(megabytes * MB)


def test_what_has_no_time():
    told = found("ddp", 1.0, device="Unknown")
    assert (told.seconds, told.exposed_seconds) == (None, None)
    assert told.notes == ("no time: how fast several of it communicate is not known",)
    # What crosses PCIe goes on to an NVMe disk, of which nothing is known.
    told = found("zero3", 1.0, offload_parameters=True, to_disk=True)
    assert (told.seconds, told.exposed_seconds) == (None, None)
    assert told.notes == ("no time: the speed of the disk at distributed.offload.nvme_path is not known",)
    assert found("zero3", 1.0, to_disk=True).seconds is not None
