"""A pool of fixed segments, each one ``cudaMalloc``: how PyTorch's CUDA caching allocator holds memory by default."""

from __future__ import annotations

from hf_efficient.estimate.allocator_blocks import (
    LARGE_PAGE_BYTES,
    ROUND_BYTES,
    SMALL_BYTES,
    SMALL_PAGE_BYTES,
    Block,
    FreeBlocks,
)

_PACKED_BELOW = 10 << 20  # kMinLargeAlloc
_ROUND_LARGE = 2 << 20  # kRoundLarge


class SegmentPool:
    """Segments of 2 MiB for small requests, of 20 MiB for those below 10 MiB, else of the next 2 MiB.

    A block of the large pool is split where more than 1 MiB would remain, so a request may hold up to 1 MiB more than
    it asked for. Only a segment that is free as a whole goes back to the device. Segments never merge.

    Source: pytorch ``c10/cuda/CUDACachingAllocator.cpp`` at commit 001074d: ``get_allocation_size``, ``should_split``,
    ``get_free_block``, ``release_blocks``.
    """

    def __init__(self, *, small: bool) -> None:
        """Start empty; ``small``: for requests of up to 1 MiB."""
        self._free = FreeBlocks()
        self._small = small
        self._end = 0
        self.reserved_bytes = 0
        self.least_remainder = ROUND_BYTES if small else SMALL_BYTES + ROUND_BYTES

    def take(self, size: int) -> Block | None:
        """See ``Pool``."""
        entries, index = self._free.entries, self._free.fit(size)
        return entries.pop(index)[2] if index < len(entries) else None

    def grow(self, size: int, room_bytes: float) -> Block | None:
        """See ``Pool``."""
        segment = self._segment(size)
        if segment > room_bytes:
            return None
        block = Block(self._end, segment)
        self._end += segment
        self.reserved_bytes += segment
        return block

    def put(self, block: Block) -> None:
        """See ``Pool``."""
        self._free.add(block)

    def release(self) -> None:
        """See ``Pool``."""
        kept = [entry for entry in self._free.entries if entry[2].previous or entry[2].following]
        freed = sum(entry[0] for entry in self._free.entries) - sum(entry[0] for entry in kept)
        self._free.entries = kept
        self.reserved_bytes -= freed

    def _segment(self, size: int) -> int:
        if self._small:
            return SMALL_PAGE_BYTES
        return LARGE_PAGE_BYTES if size < _PACKED_BELOW else -(-size // _ROUND_LARGE) * _ROUND_LARGE
