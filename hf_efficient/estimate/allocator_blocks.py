"""Blocks of an allocator's address range, the free ones among them, and what an allocator asks of a pool of them.

Neighbours of a range are linked. Sizes are multiples of 512 bytes. Addresses are counted from 0 in each pool: they
order blocks of one size and mean nothing else.

Source: pytorch ``c10/cuda/CUDACachingAllocator.cpp`` at commit 001074d (``Block``, ``BlockPool``,
``try_merge_blocks``); constants as in torch 2.13's ``c10/core/AllocatorConfig.h``.
"""

from __future__ import annotations

import bisect
from typing import Protocol

ROUND_BYTES = 512
"""``kMinBlockSize``: every request is rounded up to a multiple of it."""
SMALL_BYTES = 1 << 20
"""``kSmallSize``: the largest request that the small pool serves."""
SMALL_PAGE_BYTES = 2 << 20
"""``kSmallBuffer``: what the small pool asks of the device at a time."""
LARGE_PAGE_BYTES = 20 << 20
"""``large_segment_size``: what the large pool asks of the device at least."""


class Block:
    """A piece of a pool's address range; ``mapped`` is False where no physical memory lies behind it."""

    __slots__ = ("address", "allocated", "following", "mapped", "previous", "size")

    def __init__(self, address: int, size: int, previous: Block | None = None, following: Block | None = None) -> None:
        self.address = address
        self.size = size
        self.previous = previous
        self.following = following
        self.allocated = False
        self.mapped = True
        if previous is not None:
            previous.following = self
        if following is not None:
            following.previous = self

    def absorb(self, other: Block) -> None:
        """Takes over a neighbour's addresses; the neighbour is no block any more."""
        if other is self.previous:
            self.address, self.previous = other.address, other.previous
            if other.previous is not None:
                other.previous.following = self
        else:
            self.following = other.following
            if other.following is not None:
                other.following.previous = self
        self.size += other.size


class FreeBlocks:
    """Mapped blocks that are not in use, in order of size, then address: best fit is the first that is large enough."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, Block]] = []

    def fit(self, size: int) -> int:
        """The index of the best fit; the number of blocks where none is large enough."""
        return bisect.bisect_left(self.entries, (size,))

    def remove(self, block: Block) -> None:
        """Takes a block out."""
        del self.entries[bisect.bisect_left(self.entries, (block.size, block.address))]

    def add(self, block: Block) -> None:
        """Takes a block in, merged with those of its neighbours that are free and mapped."""
        for other in (block.previous, block.following):
            if other is not None and not other.allocated and other.mapped:
                self.remove(other)
                block.absorb(other)
        bisect.insort(self.entries, (block.size, block.address, block))


class Pool(Protocol):
    """What the allocator asks of a pool; a block that is handed out is no longer among the free ones.

    Attributes:
        reserved_bytes: what it holds of the device's memory.
        least_remainder: a block is split where this much or more of it would remain.
    """

    reserved_bytes: int
    least_remainder: int

    def take(self, size: int) -> Block | None:
        """The free block that fits best; None where none is large enough."""

    def grow(self, size: int, room_bytes: float) -> Block | None:
        """A block with new memory; None where that is more than the room that the device has."""

    def put(self, block: Block) -> None:
        """Takes in a block that is not in use."""

    def release(self) -> None:
        """Gives free memory back to the device."""
