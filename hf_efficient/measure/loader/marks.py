"""What the loader did between two readings of its sums."""

from __future__ import annotations

import msgspec

from hf_efficient.measure.loader.counts import COUNTS, counts_in
from hf_efficient.measure.loader.taken import Taken
from hf_efficient.records import StepLoader

__all__ = ["LoaderMark", "step_loader"]


class LoaderMark(msgspec.Struct, frozen=True):
    """Where the sums stood.

    Attributes:
        taken: by the process that trains.
        before: what iterators that are gone have loaded, by ``COUNTS``.
        raw: the counts of the one that is not, as they lie in memory.
    """

    taken: Taken
    before: tuple[float, ...]
    raw: bytes


def step_loader(since: LoaderMark, until: LoaderMark) -> StepLoader:
    """What came between two marks, to the tenth of a microsecond."""
    taken, earlier = until.taken, since.taken
    ends = zip(until.before, counts_in(until.raw), since.before, counts_in(since.raw), strict=True)
    sums = (round(gone + here - gone_then - here_then, 7) for gone, here, gone_then, here_then in ends)
    fetched, *seconds, read = sums
    return StepLoader(
        batches=taken.batches - earlier.batches,
        wait_seconds=round(taken.wait_seconds - earlier.wait_seconds, 7),
        rows=None if taken.rows is None or earlier.rows is None else taken.rows - earlier.rows,
        bytes=taken.bytes - earlier.bytes,
        start_seconds=round(taken.start_seconds - earlier.start_seconds, 7),
        end_seconds=round(taken.end_seconds - earlier.end_seconds, 7),
        first_wait_seconds=round(taken.first_wait_seconds - earlier.first_wait_seconds, 7),
        ready=None if taken.ready is None else taken.ready - (earlier.ready or 0),
        fetched=int(fetched),
        read_bytes=int(read),
        **dict(zip(COUNTS[1:-1], seconds, strict=True)),
    )
