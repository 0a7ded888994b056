"""Thinning a stream of unknown length: neighbours are put together once there are too many."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

__all__ = ["MOST_BUCKETS", "Bucket", "Thinned"]

MOST_BUCKETS = 2000
"""More than a plot has columns of pixels."""


class Bucket(Protocol):
    """What is known of consecutive records."""

    count: int

    @property
    def group(self) -> Hashable:
        """Only neighbours of one group are put together."""

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""


_B = TypeVar("_B", bound=Bucket)


class Thinned(Generic[_B]):
    """At most ``most`` buckets, and at least one per group, however long the stream is.

    All buckets of a group hold ``width`` records but its last one, which may hold fewer. When there are too many, the
    width doubles.
    """

    def __init__(self, most: int | None = None) -> None:
        self.buckets: list[_B] = []
        self.width = 1
        self._most = MOST_BUCKETS if most is None else most
        self._groups = 0

    def add(self, bucket: _B) -> None:
        """Take in the next record, as a bucket of one."""
        last = self.buckets[-1] if self.buckets else None
        if last is not None and last.group == bucket.group:
            if last.count < self.width:
                last.merge(bucket)
                return
        else:
            self._groups += 1
        self.buckets.append(bucket)
        while len(self.buckets) > max(self._most, self._groups):
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
