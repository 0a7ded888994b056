"""How much memory PyTorch's CUDA caching allocator reserves for a series of allocations and frees.

What a program has allocated is less than what its process holds of the device: the allocator rounds, asks the device
for whole segments, and keeps what is freed. The reserved bytes decide whether a run fits.

The rules, of pytorch ``c10/cuda/CUDACachingAllocator.cpp`` at commit 001074d (``DeviceCachingAllocator::malloc`` and
``free``; constants unchanged in torch 2.13's ``c10/core/AllocatorConfig.h``):

1. A request is rounded up to 512 bytes. Up to 1 MiB is served by the small pool, more by the large one.
2. The smallest free block of the pool that is large enough is taken; among equals the one at the lowest address.
3. Without one, the pool asks the device for a segment or, under ``expandable_segments:True``, for pages.
4. Where the device has no room, all segments (pages) that are free are given back, and 3 is tried again: a retry.
5. A block that is much larger than the request is split. A freed block merges with its free neighbours, and is kept.

What is left out: several streams (a block is only used again on the stream that it was allocated on), CUDA graphs, and
``roundup_power2_divisions``, ``max_split_size_mb`` and ``garbage_collection_threshold``, which are off by default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hf_efficient.estimate.allocator_blocks import ROUND_BYTES, SMALL_BYTES, Block, Pool
from hf_efficient.estimate.expandable_pool import ExpandablePool
from hf_efficient.estimate.segment_pool import SegmentPool


class OutOfMemory(Exception):
    """A request that does not fit, even after all that was cached has been given back.

    Attributes:
        requested_bytes: of the request, rounded.
        allocated_bytes: of the blocks in use.
        reserved_bytes: held of the device, after giving back.
        limit_bytes: what could be held.
    """

    def __init__(self, requested_bytes: int, allocated_bytes: int, reserved_bytes: int, limit_bytes: float) -> None:
        self.requested_bytes = requested_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            f"{requested_bytes:,} bytes were asked for; of {limit_bytes:,} bytes {reserved_bytes:,} are reserved,"
            f" {allocated_bytes:,} of them in use"
        )


@dataclass(frozen=True)
class AllocatorPeaks:
    """What a series of allocations and frees came to.

    Attributes:
        peak_allocated_bytes: most that blocks in use held, as ``torch.cuda.max_memory_allocated()`` counts it.
        peak_reserved_bytes: most that was held of the device, as ``torch.cuda.max_memory_reserved()`` counts it.
        retries: how often free memory was given back to make room, as ``num_alloc_retries`` counts it.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int


class CachingAllocator:
    """The allocator of one device, with one stream.

    Hand-worked, without expandable segments: 3,000,000 bytes are rounded to 3,000,320 and cut from a segment of
    20,971,520; 100 bytes are rounded to 512 and cut from one of 2,097,152: 3,000,832 allocated, 23,068,672 reserved.
    Both freed, 0 are allocated, and 23,068,672 stay reserved.
    """

    def __init__(self, limit_bytes: int | None = None, expandable_segments: bool = False) -> None:
        """Start with nothing reserved.

        Args:
            limit_bytes: what can be reserved: the device's memory less what the process takes outside of the allocator
                and what other processes hold. None: any amount.
            expandable_segments: as in ``PYTORCH_ALLOC_CONF=expandable_segments:True``.

        Raises:
            ValueError: the limit is not positive.
        """
        if limit_bytes is not None and limit_bytes <= 0:
            raise ValueError(f"a limit of {limit_bytes} bytes")
        kind = ExpandablePool if expandable_segments else SegmentPool
        self._small: Pool = kind(small=True)
        self._large: Pool = kind(small=False)
        self._limit = math.inf if limit_bytes is None else limit_bytes
        self._live: dict[int, tuple[Pool, Block] | None] = {}
        self._allocated = self._peak_allocated = self._peak_reserved = self._retries = 0

    def allocate(self, key: int, size: int) -> None:
        """Allocates; 0 bytes take nothing.

        Args:
            key: by which it is freed; may be used again after that.
            size: bytes.

        Raises:
            OutOfMemory: the limit is passed. Nothing was allocated; what was free has been given back.
            ValueError: the size is negative, or the key has not been freed.
        """
        if size < 0:
            raise ValueError(f"{size} bytes for key {key}")
        if key in self._live:
            raise ValueError(f"{size} bytes for key {key}, which has not been freed")
        if size == 0:
            self._live[key] = None
            return
        size = (size + ROUND_BYTES - 1) // ROUND_BYTES * ROUND_BYTES
        pool = self._small if size <= SMALL_BYTES else self._large
        block = pool.take(size) or self._grow(pool, size)
        block.allocated = True
        if block.size - size >= pool.least_remainder:
            rest = Block(block.address + size, block.size - size, block, block.following)
            block.size = size
            pool.put(rest)
        self._live[key] = (pool, block)
        self._allocated += block.size
        if self._allocated > self._peak_allocated:
            self._peak_allocated = self._allocated

    def free(self, key: int) -> None:
        """Frees what was allocated under a key.

        Raises:
            ValueError: nothing is allocated under it.
        """
        if key not in self._live:
            raise ValueError(f"nothing is allocated under key {key}")
        held = self._live.pop(key)
        if held is not None:
            pool, block = held
            self._allocated -= block.size
            block.allocated = False
            pool.put(block)

    def _grow(self, pool: Pool, size: int) -> Block:
        for retry in (False, True):
            if retry:
                self._large.release()
                self._small.release()
                self._retries += 1
            block = pool.grow(size, self._limit - self.reserved_bytes)
            self._peak_reserved = max(self._peak_reserved, self.reserved_bytes)
            if block is not None:
                return block
        raise OutOfMemory(size, self._allocated, self.reserved_bytes, self._limit)

    @property
    def allocated_bytes(self) -> int:
        """What blocks in use hold, their rounding included."""
        return self._allocated

    @property
    def reserved_bytes(self) -> int:
        """What is held of the device."""
        return self._small.reserved_bytes + self._large.reserved_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The most that blocks in use have held."""
        return self._peak_allocated

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that has been held of the device."""
        return self._peak_reserved

    @property
    def retries(self) -> int:
        """How often free memory was given back to make room."""
        return self._retries


def replay(
    events: Iterable[tuple[int, int]], limit_bytes: int | None = None, expandable_segments: bool = False
) -> AllocatorPeaks:
    """Runs allocations and frees through a fresh allocator.

    Args:
        events: key and bytes; negative bytes free what the key holds. Read once, one at a time. Events of 0 bytes, on
            either side, mean nothing.
        limit_bytes, expandable_segments: see ``CachingAllocator``.

    Raises:
        OutOfMemory, ValueError: as ``CachingAllocator.allocate`` and ``free``.
    """
    allocator = CachingAllocator(limit_bytes, expandable_segments)
    allocate, free = allocator.allocate, allocator.free
    for key, size in events:
        if size > 0:
            allocate(key, size)
        elif size < 0:
            free(key)
    return AllocatorPeaks(allocator.peak_allocated_bytes, allocator.peak_reserved_bytes, allocator.retries)
