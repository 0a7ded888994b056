"""Consecutive samples of the system put together, and their columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hf_efficient.account.nanoseconds import by_name
from hf_efficient.account.system_lines import SystemLine
from hf_efficient.records.series import Band, SystemSeries

__all__ = ["SystemBucket", "system_series"]

_K = TypeVar("_K")
_HOST, _CORES = "host", "cores"
_BYTES = ("rss_bytes", "host_available_bytes", "device_allocated_bytes", "device_reserved_bytes")


@dataclass
class _Range:
    """The sum is one of whole thousandths, in which figures are written: the same in whatever order it is taken."""

    low: float
    thousandths: int
    high: float
    count: int

    @classmethod
    def of_bytes(cls, values: Sequence[int]) -> _Range:
        return cls(min(values), 1000 * sum(values), max(values), len(values))

    @classmethod
    def of_figures(cls, values: Sequence[float]) -> _Range:
        return cls(min(values), round(1000 * math.fsum(values)), max(values), len(values))

    def merge(self, later: _Range) -> None:
        self.low, self.high = min(self.low, later.low), max(self.high, later.high)
        self.thousandths, self.count = self.thousandths + later.thousandths, self.count + later.count

    @property
    def mean(self) -> float:
        return self.thousandths / 1000 / self.count


@dataclass
class SystemBucket:
    """Samples of one process.

    Attributes:
        group: the process.
        count: samples.
        started_at_seconds, ended_at_seconds: the first and the last, from the start of the process.
        bytes, watts: what was read, by column and by meter.
        loads: figures of host, cores and GPUs, by where they belong and by name.
        throttled: by GPU and reason, in how many samples it was held back.
    """

    group: int
    count: int
    started_at_seconds: float
    ended_at_seconds: float
    bytes: dict[str, _Range] = field(default_factory=dict)
    watts: dict[str, _Range] = field(default_factory=dict)
    loads: dict[tuple[str, str], _Range] = field(default_factory=dict)
    throttled: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def of(cls, lines: Sequence[SystemLine]) -> SystemBucket:
        """Some samples, at least one, of one process."""
        columns = {
            "rss_bytes": [line.rss_bytes for line in lines],
            "host_available_bytes": [line.host_available_bytes for line in lines],
            "device_allocated_bytes": [line.device_allocated_bytes for line in lines],
            "device_reserved_bytes": [line.device_reserved_bytes for line in lines],
        }
        known = {name: [value for value in values if value is not None] for name, values in columns.items()}
        return cls(
            group=lines[0].process,
            count=len(lines),
            started_at_seconds=lines[0].at_seconds,
            ended_at_seconds=lines[-1].at_seconds,
            bytes={name: _Range.of_bytes(values) for name, values in known.items() if values},
            watts={name: _Range.of_figures(values) for name, values in by_name([line.watts for line in lines])},
            loads=_loads(lines),
            throttled=Counter((gpu, why) for line in lines for gpu, all_of in line.throttled.items() for why in all_of),
        )

    def merge(self, later: object) -> None:
        """Take in the bucket that follows."""
        assert isinstance(later, SystemBucket)
        self.count += later.count
        self.ended_at_seconds = later.ended_at_seconds
        _merge(self.bytes, later.bytes)
        _merge(self.watts, later.watts)
        _merge(self.loads, later.loads)
        self.throttled.update(later.throttled)


def _merge(ours: dict[_K, _Range], theirs: Mapping[_K, _Range]) -> None:
    for name, reading in theirs.items():
        if name in ours:
            ours[name].merge(reading)
        else:
            ours[name] = reading


def _loads(lines: Sequence[SystemLine]) -> dict[tuple[str, str], _Range]:
    """Of the host under its name, of core N under (``cores``, N), of a GPU under (its number, name)."""
    found = {(_HOST, name): values for name, values in by_name([line.host for line in lines])}
    told = [line.core_loads for line in lines if line.core_loads]
    cores = zip(*told, strict=False)  # of a machine whose cores were switched off, those that stayed
    found |= {(_CORES, str(number)): [float(one) for one in loads] for number, loads in enumerate(cores)}
    for gpu in dict.fromkeys(gpu for line in lines for gpu in line.gpus):
        figures = by_name([line.gpus[gpu] for line in lines if gpu in line.gpus])
        found |= {(gpu, name): values for name, values in figures}
    return {key: _Range.of_figures(values) for key, values in found.items()}


def system_series(buckets: Sequence[SystemBucket], starts: Mapping[int, float]) -> SystemSeries:
    """The columns.

    Args:
        buckets: in the order of the samples; those of a process without a start are left out.
        starts: process to the run time at which its own clock read 0.
    """
    placed = [bucket for bucket in buckets if bucket.group in starts]
    meters = list(dict.fromkeys(name for bucket in placed for name in bucket.watts))
    gpus = dict.fromkeys(place for bucket in placed for place, _ in bucket.loads if place not in (_HOST, _CORES))
    return SystemSeries(
        process=[bucket.group for bucket in placed],
        started_at_seconds=[round(starts[one.group] + one.started_at_seconds, 9) for one in placed],
        ended_at_seconds=[round(starts[one.group] + one.ended_at_seconds, 9) for one in placed],
        **{name: _band([bucket.bytes.get(name) for bucket in placed]) for name in _BYTES},
        watts={name: _band([bucket.watts.get(name) for bucket in placed]) for name in meters},
        host=_bands_of(_HOST, placed),
        core_loads=list(_bands_of(_CORES, placed).values()),
        gpus={gpu: _bands_of(gpu, placed) for gpu in gpus},
        throttled={gpu: shares for gpu in gpus if (shares := _throttled(gpu, placed))},
    )


def _bands_of(place: str, buckets: Sequence[SystemBucket]) -> dict[str, Band]:
    names = dict.fromkeys(name for bucket in buckets for where, name in bucket.loads if where == place)
    return {name: _band([bucket.loads.get((place, name)) for bucket in buckets]) for name in names}


def _throttled(gpu: str, buckets: Sequence[SystemBucket]) -> dict[str, list[float]]:
    reasons = dict.fromkeys(why for bucket in buckets for where, why in bucket.throttled if where == gpu)
    return {why: [bucket.throttled[gpu, why] / bucket.count for bucket in buckets] for why in reasons}


def _band(ranges: Sequence[_Range | None]) -> Band:
    return Band(
        low=[None if one is None else one.low for one in ranges],
        mean=[None if one is None else one.mean for one in ranges],
        high=[None if one is None else one.high for one in ranges],
    )
