"""The allocator's rules by hand, and what a process takes beside it."""

import pytest

from hf_efficient.estimate.allocator import CachingAllocator, OutOfMemory, cublas_workspace_bytes, nccl_bytes, replay

MIB = 1 << 20


def held(allocator: CachingAllocator) -> tuple[int, int]:
    return allocator.allocated_bytes, allocator.reserved_bytes


def allocated(*sizes: int, limit: int | None = None) -> CachingAllocator:
    """An allocator with these, under keys 0, 1, ..."""
    allocator = CachingAllocator(limit)
    for key, size in enumerate(sizes):
        allocator.allocate(key, size)
    return allocator


@pytest.mark.parametrize(
    ("size", "taken", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),  # rounded first: 10 MiB is no longer packed into 20
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB would remain, which is not split off
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # 1 MiB and 512 bytes are
        (8_519_680, 8_519_680, 20 * MIB),  # cuBLAS's workspace, as torch.cuda.memory_snapshot() shows it
    ],
)
def test_one_request(size, taken, reserved):
    assert held(allocated(size)) == (taken, reserved)


def test_what_is_freed_is_used_again():
    allocator = allocated(3_000_000, 100)
    assert held(allocator) == (3_000_832, 23_068_672)
    allocator.free(0)
    allocator.free(1)
    assert held(allocator) == (0, 23_068_672)
    allocator.allocate(0, 19 * MIB)
    assert held(allocator) == (20 * MIB, 23_068_672)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (20 * MIB, 23_068_672)
    # Free are 16, 12 and 30 MiB: 11.5 MiB go into the 12, 14 into the 16, and 30 into the 30.
    allocator = allocated(16 * MIB, 12 * MIB, 30 * MIB)
    for key in range(3):
        allocator.free(key)
    for key, size in enumerate((23 * MIB // 2, 15 * MIB, 30 * MIB)):
        allocator.allocate(key, size)
    assert held(allocator) == (58 * MIB, 58 * MIB)
    # Of 20 MiB 4, 4 and 4 are taken and freed, the middle last: 20 fit again; 40 never fit into two of 20.
    allocator = allocated(4 * MIB, 4 * MIB, 4 * MIB)
    for key in (0, 2, 1):
        allocator.free(key)
    allocator.allocate(3, 20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(4, 20 * MIB)
    allocator.free(3)
    allocator.free(4)
    allocator.allocate(5, 40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


def test_cached_segments_are_given_back_when_the_device_is_full():
    """30 and 20 MiB cached of 60: 40 more fit only after both are given back; a segment in use stays."""
    allocator = allocated(30 * MIB, 20 * MIB, 4 * 512, limit=60 * MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.allocate(3, 40 * MIB)
    assert held(allocator) == (40 * MIB + 2048, 42 * MIB)
    assert (allocator.retries, allocator.peak_reserved_bytes) == (1, 52 * MIB)


def test_what_does_not_fit_is_reported():
    """20 of 60 MiB in use, 20 cached and given back: 50 do not fit into the other 40."""
    allocator = allocated(20 * MIB, 20 * MIB, limit=60 * MIB)
    allocator.free(1)
    with pytest.raises(OutOfMemory):
        allocator.allocate(2, 50 * MIB)
    allocator.allocate(2, 40 * MIB)
    assert held(allocator) == (60 * MIB, 60 * MIB)


def test_replay_reads_a_stream():
    events = iter([(7, 3_000_000), (8, 100), (9, 0), (7, -3_000_000), (7, 19 * MIB), (9, 0), (8, -100)])
    found = replay(events)
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.retries) == (20 * MIB + 512, 23_068_672, 0)
    with pytest.raises(OutOfMemory):
        replay([(0, 3 * MIB)], limit_bytes=4 * MIB)


def test_what_cublas_and_nccl_take():
    capabilities = [(7, 5), (8, 9), (9, 0), (12, 0)]
    assert [cublas_workspace_bytes(one) for one in capabilities] == [8_519_680, 8_519_680, 33_554_432, 33_554_432]
    assert [nccl_bytes(ranks) // MIB for ranks in (1, 2, 3, 8)] == [0, 342, 392, 392]
