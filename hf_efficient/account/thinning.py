"""Thinning a stream of unknown length: neighbours are put together once there are too many."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["MOST_BUCKETS", "Bucket", "Thinned"]

MOST_BUCKETS = 2000
"""More than a plot has columns of pixels."""


class Bucket(Protocol):
    """What is known of consecutive records."""

    @property
    def count(self) -> int:
        """How many records."""

    @property
    def group(self) -> Hashable:
        """Only neighbours of one group are put together."""

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""


_B = TypeVar("_B", bound=Bucket)
_R = TypeVar("_R")


@dataclass
class Thinned(Generic[_B]):
    """At most ``most`` buckets, and at least one per group, however long the stream is.

    All buckets of a group hold ``width`` records but its last one, which may hold fewer. When there are too many, the
    width doubles.
    """

    most: int = field(default_factory=lambda: MOST_BUCKETS)
    width: int = 1
    buckets: list[_B] = field(default_factory=list)
    _groups: int = 0

    def take(self, group: Hashable, records: Sequence[_R], put_together: Callable[[Sequence[_R]], _B]) -> None:
        """Take in the next records.

        Args:
            group: to which all of them belong.
            records: any number, in the order of the stream.
            put_together: makes a bucket of some of them.
        """
        at = 0
        while at < len(records):
            last = self.buckets[-1] if self.buckets else None
            if last is not None and last.group == group and last.count < self.width:
                until = at + self.width - last.count
                last.merge(put_together(records[at:until]))
            else:
                until = at + self.width
                self._groups += last is None or last.group != group
                self.buckets.append(put_together(records[at:until]))
            at = until
            while len(self.buckets) > max(self.most, self._groups):
                self._halve()

    def _halve(self) -> None:
        self.width *= 2
        kept: list[_B] = []
        for bucket in self.buckets:
            last = kept[-1] if kept else None
            if last is not None and last.group == bucket.group and last.count + bucket.count <= self.width:
                last.merge(bucket)
            else:
                kept.append(bucket)
        self.buckets = kept
