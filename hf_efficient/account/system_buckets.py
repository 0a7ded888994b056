"""Consecutive readings of the system sampler put together, and their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.account.reading import check_version, parse_line
from hf_efficient.account.tail import Tail
from hf_efficient.account.thinning import Thinned
from hf_efficient.errors import OutputError
from hf_efficient.records.series import Band, SystemSeries

__all__ = ["SystemBucket", "SystemReader", "system_series"]

_BYTES = ("rss_bytes", "host_available_bytes", "device_allocated_bytes", "device_reserved_bytes")


@dataclass
class _Range:
    low: float
    sum: float
    high: float
    count: int = 1

    def merge(self, later: _Range) -> None:
        self.low, self.high = min(self.low, later.low), max(self.high, later.high)
        self.sum, self.count = self.sum + later.sum, self.count + later.count


@dataclass
class SystemBucket:
    """Readings of one process.

    Attributes:
        group: the process.
        count: readings.
        started_at_seconds, ended_at_seconds: the first and the last, from the start of the process.
        bytes, watts: what was read, by name.
    """

    group: int
    count: int
    started_at_seconds: float
    ended_at_seconds: float
    bytes: dict[str, _Range] = field(default_factory=dict)
    watts: dict[str, _Range] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[Mapping[str, Any]]) -> SystemBucket:
        """Some readings, at least one, lines of ``system.jsonl``.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: one is none.
        """
        first, *others = (cls._of_one(line) for line in lines)
        for other in others:
            first.merge(other)
        return first

    @classmethod
    def _of_one(cls, line: Mapping[str, Any]) -> SystemBucket:
        at = float(line["at_seconds"])
        return cls(
            group=int(line["process"]),
            count=1,
            started_at_seconds=at,
            ended_at_seconds=at,
            bytes={name: _reading(line[name]) for name in _BYTES if line.get(name) is not None},
            watts={str(name): _reading(value) for name, value in line.get("watts", {}).items() if value is not None},
        )

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""
        assert isinstance(later, SystemBucket)
        self.count += later.count
        self.ended_at_seconds = later.ended_at_seconds
        for ours, theirs in ((self.bytes, later.bytes), (self.watts, later.watts)):
            for name, reading in theirs.items():
                if name in ours:
                    ours[name].merge(reading)
                else:
                    ours[name] = reading


def _reading(value: float) -> _Range:
    return _Range(value, value, value)


class SystemReader:
    """Thins a file of readings that grows.

    Attributes:
        readings: what has been read.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read before ``look``."""
        self.path = path
        self.readings: Thinned[SystemBucket] = Thinned()
        self._tail = Tail(path)

    def look(self) -> None:
        """Take in what came since the last look.

        Raises:
            OutputError: the file cannot be read, holds something else, or was written by a newer version.
            Replaced: it does not go on from where it was left.
        """
        for block in self._tail.blocks():
            for number, text in block:
                line = parse_line(text)
                if line is None:
                    continue
                check_version(self.path, number, line)
                try:
                    self.readings.take(int(line["process"]), [line], SystemBucket.of)
                except (KeyError, TypeError, ValueError, AttributeError) as error:
                    told = f"{type(error).__name__}: {error}"
                    raise OutputError(f"{self.path}:{number}: not a reading: {told}") from error


def system_series(buckets: Sequence[SystemBucket], starts: Mapping[int, float]) -> SystemSeries:
    """The columns.

    Args:
        buckets: in the order of the readings; those of a process without a start are left out.
        starts: process to the run time at which its own clock read 0.
    """
    placed = [bucket for bucket in buckets if bucket.group in starts]
    meters = list(dict.fromkeys(name for bucket in placed for name in bucket.watts))
    return SystemSeries(
        process=[bucket.group for bucket in placed],
        started_at_seconds=[round(starts[one.group] + one.started_at_seconds, 9) for one in placed],
        ended_at_seconds=[round(starts[one.group] + one.ended_at_seconds, 9) for one in placed],
        **{name: _band([bucket.bytes.get(name) for bucket in placed]) for name in _BYTES},
        watts={name: _band([bucket.watts.get(name) for bucket in placed]) for name in meters},
    )


def _band(ranges: Sequence[_Range | None]) -> Band:
    return Band(
        low=[None if one is None else one.low for one in ranges],
        mean=[None if one is None else one.sum / one.count for one in ranges],
        high=[None if one is None else one.high for one in ranges],
    )
