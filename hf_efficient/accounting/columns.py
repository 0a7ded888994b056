"""Records as columns: tables with a row per record, exact sums over them, and their thinning for plots."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, pairwise
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float64]

MOST_BUCKETS = 2000
"""More than a plot has columns of pixels."""

_C = TypeVar("_C", bound="Columns")


@dataclass(frozen=True)
class Columns:
    """Columns of equal length, each a field of its own or by name in one; NaN: not known. ``ABSENT`` says by field what
    a row holds under a name that its block of rows lacks, else NaN."""

    ABSENT: ClassVar[Mapping[str, float]] = {}

    def __getitem__(self: _C, rows: slice | npt.NDArray[Any]) -> _C:
        def cut(value: Any) -> Any:
            return {name: held[rows] for name, held in value.items()} if isinstance(value, dict) else value[rows]

        return type(self)(**{one.name: cut(getattr(self, one.name)) for one in fields(self)})

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


def column(values: Sequence[Any]) -> Column:
    """Numbers; None becomes NaN, and the word ``nan`` or ``inf`` what it says."""
    return np.array(values, dtype=np.float64)


def table(parts: Sequence[Mapping[str, Any] | None], absent: float = 0.0) -> dict[str, Column]:
    """A column for every name that any part holds; a row without a part is NaN, one that lacks the name ``absent``."""
    found = {}
    for name in dict.fromkeys(chain.from_iterable(filter(None, parts))):
        try:  # in most blocks every row holds the same names
            found[name] = column([part[name] for part in parts])  # type: ignore[index]
        except (KeyError, TypeError):
            found[name] = column([None if part is None else part.get(name, absent) for part in parts])
    return found


def joined(blocks: Sequence[_C]) -> _C:
    first = blocks[0]
    if len(blocks) == 1:
        return first

    def join(name: str) -> Any:
        parts = [getattr(block, name) for block in blocks]
        if not isinstance(parts[0], dict):
            return np.concatenate(parts)
        absent = [np.full(len(block), first.ABSENT.get(name, np.nan)) for block in blocks]
        return {
            key: np.concatenate([part.get(key, rest) for part, rest in zip(parts, absent, strict=True)])
            for key in dict.fromkeys(key for part in parts for key in part)
        }

    return type(first)(**{one.name: join(one.name) for one in fields(first)})


def nanoseconds(seconds: Column) -> int:
    """The sum of times, NaN left out, in the whole nanoseconds in which the clocks count: exact in any order."""
    return int(np.rint(np.nan_to_num(seconds) * 1e9).astype(np.int64).sum())


def total(counts: Column) -> int | None:
    """The sum of whole numbers, exact beyond 2**53 too; None where a row does not know it."""
    if np.isnan(counts).any():
        return None
    high = np.floor(counts / 2**32)
    return int(high.sum()) * 2**32 + int((counts - high * 2**32).sum())


def runs(groups: Column) -> Iterator[slice]:
    edges = np.flatnonzero(np.diff(groups)) + 1
    return (slice(int(start), int(end)) for start, end in pairwise((0, *edges, len(groups))) if end > start)


def bucket_starts(groups: Column) -> npt.NDArray[np.int64]:
    """The rows at which at most so many buckets of equal length, a power of two, begin; each group has its own."""
    held = list(runs(groups))
    width = 1
    while sum(-(-(one.stop - one.start) // width) for one in held) > max(MOST_BUCKETS, len(held)):
        width *= 2
    return np.concatenate([np.arange(one.start, one.stop, width) for one in held] or [np.zeros(0)]).astype(np.int64)
