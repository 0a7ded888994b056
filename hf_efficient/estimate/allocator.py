"""How much memory PyTorch's CUDA caching allocator reserves for a series of allocations and frees, and what a process
takes of a GPU beside it.

The reserved bytes decide whether a run fits: the allocator rounds, asks for whole segments, and keeps what is freed.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable

ROUND_BYTES = 512
"""``kMinBlockSize``: every request is rounded up to a multiple of it."""
SMALL_BYTES = 1 << 20
"""``kSmallSize``: the largest request that the small pool serves."""
SMALL_PAGE_BYTES = 2 << 20
"""``kSmallBuffer``: what the small pool asks of the device at a time."""
LARGE_PAGE_BYTES = 20 << 20
"""``large_segment_size``: what the large pool asks of the device at least."""
_PACKED_BELOW = 10 << 20  # kMinLargeAlloc
_ROUND_LARGE = 2 << 20  # kRoundLarge


class Block:
    """A piece of a segment, linked to its neighbours, from ``address``."""

    __slots__ = ("address", "allocated", "following", "previous", "size")

    def __init__(self, address: int, size: int, previous: Block | None = None, following: Block | None = None) -> None:
        self.address = address
        self.size = size
        self.previous = previous
        self.following = following
        self.allocated = False
        if previous is not None:
            previous.following = self
        if following is not None:
            following.previous = self

    def absorb(self, other: Block) -> None:
        if other is self.previous:
            self.address, self.previous = other.address, other.previous
            if other.previous is not None:
                other.previous.following = self
        else:
            self.following = other.following
            if other.following is not None:
                other.following.previous = self
        self.size += other.size


class Pool:
    """Fixed segments, each one ``cudaMalloc``: 2 MiB for small requests, 20 MiB below 10 MiB, else the next 2 MiB. A
    block is split where ``least_remainder`` or more of it would remain, in the large pool more than 1 MiB. So a request
    may hold up to 1 MiB more than it asked for. Only a segment that is free as a whole goes back to the device.
    Source: ``get_allocation_size``, ``should_split``, ``get_free_block``, ``release_blocks``."""

    def __init__(self, *, small: bool) -> None:
        self.reserved_bytes = 0
        self.least_remainder = ROUND_BYTES if small else SMALL_BYTES + ROUND_BYTES
        self._small = small
        self._end = 0
        self._free: list[tuple[int, int, Block]] = []  # in order of size, then address

    def take(self, size: int) -> Block | None:
        index = bisect.bisect_left(self._free, (size,))
        return self._free.pop(index)[2] if index < len(self._free) else None

    def put(self, block: Block) -> None:
        """Add a block that is not in use, merged with its free neighbours."""
        for other in (block.previous, block.following):
            if other is not None and not other.allocated:
                del self._free[bisect.bisect_left(self._free, (other.size, other.address))]
                block.absorb(other)
        bisect.insort(self._free, (block.size, block.address, block))

    def grow(self, size: int, room_bytes: float) -> Block | None:
        """A block that is a new segment; None where that is more than the room that the device has."""
        if self._small:
            segment = SMALL_PAGE_BYTES
        else:
            segment = LARGE_PAGE_BYTES if size < _PACKED_BELOW else -(-size // _ROUND_LARGE) * _ROUND_LARGE
        if segment > room_bytes:
            return None
        block = Block(self._end, segment)
        self._end += segment
        self.reserved_bytes += segment
        return block

    def release(self) -> None:
        self.reserved_bytes -= sum(size for size, _, block in self._free if not (block.previous or block.following))
        self._free = [entry for entry in self._free if entry[2].previous or entry[2].following]


class OutOfMemory(Exception):
    """A request that does not fit, even after all that was cached has been given back."""


class CachingAllocator:
    """The allocator of one device, with one stream. It counts as ``torch.cuda.max_memory_allocated``,
    ``max_memory_reserved`` and ``num_alloc_retries`` do.

    The rules, of pytorch ``c10/cuda/CUDACachingAllocator.cpp`` at commit 001074d (``DeviceCachingAllocator::malloc``
    and ``free``; constants unchanged in torch 2.13's ``c10/core/AllocatorConfig.h``):

    1. A request is rounded up to 512 bytes. Up to 1 MiB is served by the small pool, more by the large one.
    2. The smallest free block of the pool that is large enough is taken; among equals the one at the lowest address.
    3. Without one, the pool asks the device for a segment.
    4. Where the device has no room, all segments that are free are given back, and 3 is tried again: a retry.
    5. A block that is much larger than the request is split. A freed block merges with free neighbours, and is kept.

    Left out: several streams, CUDA graphs, and ``expandable_segments``, ``roundup_power2_divisions``,
    ``max_split_size_mb`` and ``garbage_collection_threshold``, which are off by default. ``limit_bytes``: what other
    processes, and this one outside the allocator, leave of the device's memory; None: any."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._small, self._large = Pool(small=True), Pool(small=False)
        self._limit = math.inf if limit_bytes is None else limit_bytes
        self._live: dict[int, tuple[Pool, Block]] = {}
        self.allocated_bytes = self.peak_allocated_bytes = self.peak_reserved_bytes = self.retries = 0

    @property
    def reserved_bytes(self) -> int:
        return self._small.reserved_bytes + self._large.reserved_bytes

    def allocate(self, key: int, size: int) -> None:
        """A key may be used again after it was freed. ``OutOfMemory``: nothing was allocated, all cached freed."""
        size = (size + ROUND_BYTES - 1) // ROUND_BYTES * ROUND_BYTES
        pool = self._small if size <= SMALL_BYTES else self._large
        block = pool.take(size) or self._grow(pool, size)
        block.allocated = True
        if block.size - size >= pool.least_remainder:
            rest = Block(block.address + size, block.size - size, block, block.following)
            block.size = size
            pool.put(rest)
        self._live[key] = (pool, block)
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def free(self, key: int) -> None:
        pool, block = self._live.pop(key)
        self.allocated_bytes -= block.size
        block.allocated = False
        pool.put(block)

    def _grow(self, pool: Pool, size: int) -> Block:
        for retry in (False, True):
            if retry:
                self._large.release()
                self._small.release()
                self.retries += 1
            block = pool.grow(size, self._limit - self.reserved_bytes)
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
            if block is not None:
                return block
        raise OutOfMemory


def replay(events: Iterable[tuple[int, int]], limit_bytes: int | None = None) -> CachingAllocator:
    """Run allocations and frees, as key and bytes (negative: free the key; 0: nothing), through a fresh allocator."""
    allocator = CachingAllocator(limit_bytes)
    for key, size in events:
        if size > 0:
            allocator.allocate(key, size)
        elif size < 0:
            allocator.free(key)
    return allocator


CONTEXT_BYTES = 426 << 20
"""What the process holds outside of the allocator: one measured context, an estimate for every NVIDIA device. PyTorch
2.10.0+cu130, RTX 6000 Ada, nvidia-smi after ``torch.cuda.mem_get_info(0)``, with nothing allocated
(https://github.com/unslothai/unsloth-zoo/pull/1053, 2026-08-12).

It differs with device, driver and CUDA version, and grows as kernels are loaded at first use. To measure it without
other processes: ``total - free`` of ``torch.cuda.mem_get_info()`` less ``torch.cuda.memory_reserved()``."""


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """What PyTorch allocates for cuBLAS at the first matrix product, through the caching allocator, and never frees.
    Compute capabilities 9, 10 and 12 (Hopper, Blackwell): ``:4096:8``; others: ``:4096:2:16:8``.
    There is one per cuBLAS handle and stream, and a thread has its own handle: a training step has two, since the
    backward has a thread (from the source, not measured). Source: pytorch ``aten/src/ATen/cuda/CublasHandlePool.cpp``,
    ``parseChosenWorkspaceSize``, ``getNewWorkspace``, ``DeviceThreadHandlePool``."""
    major, _ = compute_capability
    return (4096 * 8 if major in (9, 10, 12) else 4096 * 2 + 16 * 8) << 10


def nccl_bytes(ranks: int) -> int:
    """What NCCL's communicator takes of a device, outside of the allocator: an estimate, whatever the device. Source:
    NVIDIA's aiconfigurator, ``nccl_mem`` ("nonofficial correction based on observations"), at commit 095f58a,
    2026-11-20; it has no figure between 2 and 4."""
    return (0 if ranks < 2 else 342 if ranks == 2 else 392) << 20
