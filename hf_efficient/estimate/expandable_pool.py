"""A pool that is one growing segment: PyTorch's CUDA caching allocator under ``expandable_segments:True``."""

from __future__ import annotations

import bisect

from hf_efficient.estimate.allocator_blocks import LARGE_PAGE_BYTES, ROUND_BYTES, SMALL_PAGE_BYTES, Block, FreeBlocks

# More addresses than any device has bytes.
_ENDLESS = 1 << 60


class ExpandablePool:
    """An address range to which pages are mapped: of 2 MiB for small requests, of 20 MiB for large ones.

    New pages are mapped at the lowest address where the request fits together with what is free around it: at the end,
    as a rule, or where pages had been given back. Blocks are split wherever 512 bytes remain. Every page without a
    block in use can go back to the device.

    The address range has no end here. PyTorch's is 1 1/8 of the device's memory, and a second one is opened after it.

    Source: pytorch ``c10/cuda/CUDACachingAllocator.cpp`` at commit 001074d: "Note [Expandable Segments]",
    ``get_free_block``, ``find_expandable_block``, ``try_allocate_expandable_block``, ``map_block``, ``unmap_block``.
    """

    def __init__(self, *, small: bool) -> None:
        """Start without a page; ``small``: for requests of up to 1 MiB."""
        self._free = FreeBlocks()
        self._page = SMALL_PAGE_BYTES if small else LARGE_PAGE_BYTES
        everything = Block(0, _ENDLESS)
        everything.mapped = False
        self._unmapped = [everything]
        self.reserved_bytes = 0
        self.least_remainder = ROUND_BYTES

    def take(self, size: int) -> Block | None:
        """See ``Pool``; a block that could grow counts with what it could grow to, so that it is taken last."""
        entries, index = self._free.entries, self._free.fit(size)
        if index == len(entries):
            return None
        while index + 1 < len(entries) and _with_growth(entries[index + 1][2]) < _with_growth(entries[index][2]):
            index += 1
        return entries.pop(index)[2]

    def grow(self, size: int, room_bytes: float) -> Block | None:
        """See ``Pool``; pages that were mapped before the room ran out stay mapped, and free."""
        unlimited = room_bytes + self.reserved_bytes
        block = self._lowest(size)
        if not block.mapped and not self._map(block, min(block.size, size), unlimited):
            return None
        while block.size < size:
            beyond = block.following
            assert beyond is not None, "the address range has no end"
            if not self._map(beyond, min(beyond.size, size - block.size), unlimited):
                return None
            block = beyond
        self._free.remove(block)
        return block

    def put(self, block: Block) -> None:
        """See ``Pool``."""
        self._free.add(block)

    def release(self) -> None:
        """See ``Pool``."""
        for _, _, block in list(self._free.entries):
            self._unmap(block)

    def _lowest(self, size: int) -> Block:
        """The block at the lowest address from which free addresses, mapped or not, but not all mapped, suffice."""
        for block in self._unmapped:
            before = block.previous
            start = before if before is not None and not before.allocated else block
            room, reached = 0, start
            while room < size and not reached.allocated:
                room += reached.size
                if reached.following is None:
                    break
                reached = reached.following
            if room >= size:
                return start
        raise AssertionError("the address range has no end")

    def _map(self, block: Block, size: int, limit: float) -> bool:
        """Maps the pages that cover the first ``size`` bytes of an unmapped block, which shrinks to them."""
        mapped = -(-size // self._page) * self._page
        if self.reserved_bytes + mapped > limit:
            return False
        self.reserved_bytes += mapped
        self._unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = Block(block.address + mapped, block.size - mapped, block, block.following)
            self._add_unmapped(rest)
            block.size = mapped
        self._free.add(block)
        return True

    def _unmap(self, block: Block) -> None:
        """Gives back the whole pages of a free block; what lies before and after them stays free."""
        start = -(-block.address // self._page) * self._page
        end = (block.address + block.size) // self._page * self._page
        if start >= end:
            return
        self._free.remove(block)
        block.mapped = False
        if block.address < start:
            self._free.add(Block(block.address, start - block.address, block.previous, block))
        if end < block.address + block.size:
            self._free.add(Block(end, block.address + block.size - end, block, block.following))
        block.address, block.size = start, end - start
        self.reserved_bytes -= block.size
        self._add_unmapped(block)

    def _add_unmapped(self, block: Block) -> None:
        """Takes an unmapped block in, merged with its unmapped neighbours."""
        block.mapped = False
        for other in (block.previous, block.following):
            if other is not None and not other.mapped:
                self._unmapped.remove(other)
                block.absorb(other)
        bisect.insort(self._unmapped, block, key=lambda one: one.address)


def _with_growth(block: Block) -> int:
    after = block.following
    return block.size + (after.size if after is not None and not after.mapped else 0)
