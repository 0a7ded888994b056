"""The lines of ``system.jsonl`` as typed objects (see ``measure/system.py``, which writes them).

Consecutive samples of the system put together, and their columns.

The readings of a meter added up, so that the energy of any stretch of time can be told.

The samples of ``system.jsonl`` added up, meter by meter, in one pass.
"""

from __future__ import annotations

import functools
import itertools
import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from hf_efficient.accounting.step_sums import by_name
from hf_efficient.accounting.steps import Thinned
from hf_efficient.estimate.energy import believable, stretches
from hf_efficient.records.series import Band, SystemSeries
from hf_efficient.run_dir.reading import Line, LineReader, Tail


class MeterPart(msgspec.Struct, gc=False):
    """What a meter is."""

    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    note: str
    range_joules: float | None = None


class SystemLine(Line, gc=False, kw_only=True):
    """A sample."""

    process: int
    at_seconds: float
    rss_bytes: int | None = None
    host_available_bytes: int | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    joules: dict[str, float] = msgspec.field(default_factory=dict)
    host: dict[str, float] = msgspec.field(default_factory=dict)
    core_loads: list[int] = msgspec.field(default_factory=list)
    gpus: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)
    throttled: dict[str, list[str]] = msgspec.field(default_factory=dict)
    watts: dict[str, float] = msgspec.field(default_factory=dict)
    meters: dict[str, MeterPart] = msgspec.field(default_factory=dict)
    faults: dict[str, str] = msgspec.field(default_factory=dict)


@functools.cache
def system_reader() -> LineReader[SystemLine]:
    """Reads them."""
    return LineReader(SystemLine, "sample", _finite)


def _finite(line: SystemLine) -> None:
    loads = (value for figures in (line.host, *line.gpus.values()) for value in figures.values())
    for value in (line.at_seconds, *line.joules.values(), *line.watts.values(), *loads):
        if not math.isfinite(value):
            raise ValueError(f"it holds {value}")


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


_MOST_POINTS = 4000
"""Twice as many as a plot has, and as the loop is told apart by."""

_PLAIN_SECONDS = 5.0
_PLAIN_WATTS = 1000.0
_PLAIN_RANGE_JOULES = 10_000.0
"""A counter of less may start again within the plain seconds."""


@dataclass
class MeterCurve:
    """One meter in one process.

    Attributes:
        name: what it meters.
        process: number of the process on its rank.
        id: what it is; the same where two processes read the same.
        machine: where it is.
        source: ``nvml``, ``rapl`` or ``estimate``.
        unit: ``joules`` of a counter, or ``watts``.
        range_joules: where the counter starts again from 0; None where it does not.
        note: what to know of it.
        joules: from the first reading to the last, as far as the readings tell.
        covered_seconds: time over which they do.
        times: of the readings, in seconds from the start of the process; of thousands, of some.
        flowed: joules until then.
    """

    name: str
    process: int
    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    range_joules: float | None
    note: str
    joules: float = 0.0
    covered_seconds: float = 0.0
    times: array[float] = field(default_factory=lambda: array("d"))
    flowed: array[float] = field(default_factory=lambda: array("d"))
    _last: tuple[float, float] | None = None
    _every: int = 1
    _readings: int = 0

    def __post_init__(self) -> None:
        self._is_counter = self.unit == "joules"
        small = self.range_joules is not None and self.range_joules < _PLAIN_RANGE_JOULES
        self._plain_seconds = -1.0 if small else _PLAIN_SECONDS

    def extend(self, times: Sequence[float], values: Sequence[float]) -> None:
        """Take in readings; one from before the last is left out.

        Args:
            times: in seconds from the start of the process.
            values: what it read then, each ``believable``.
        """
        last = self._last
        for at, value in zip(times, values, strict=True):
            if last is not None:
                passed = at - last[0]
                if passed < 0:
                    continue
                # Nearly all readings are plain: what ``stretches`` says of them needs none of its cases.
                more = value - last[1] if self._is_counter else passed * (last[1] + value) / 2
                if passed <= self._plain_seconds and 0 <= more <= _PLAIN_WATTS * passed:
                    self.joules += more
                    self.covered_seconds += passed
                else:
                    self._bridge(last, (at, value))
            last = (at, value)
            if self._readings % self._every == 0:
                self._keep(at)
            self._readings += 1
        self._last = last

    def _bridge(self, before: tuple[float, float], after: tuple[float, float]) -> None:
        (stretch,) = stretches([before, after], self.unit, self.range_joules)
        if stretch.joules is not None:
            self.joules += stretch.joules
            self.covered_seconds += stretch.end - stretch.start

    def _keep(self, at: float) -> None:
        self.times.append(at)
        self.flowed.append(self.joules)
        if len(self.times) > _MOST_POINTS:
            self.times, self.flowed = self.times[::2], self.flowed[::2]
            self._every *= 2

    def until(self, at: float) -> float:
        """What had flowed by then."""
        index = bisect_right(self.times, at)
        if index == 0 or self._last is None:
            return 0.0
        start, before = self.times[index - 1], self.flowed[index - 1]
        end, after = self._last[0], self.joules
        if index < len(self.times):
            end, after = self.times[index], self.flowed[index]
        if at >= end:
            return after
        return before + (after - before) * (at - start) / (end - start)


def once_each(curves: Iterable[MeterCurve]) -> list[MeterCurve]:
    """A meter that two ranks read is counted once, by the one that read it longer."""
    best: dict[tuple[str, int], MeterCurve] = {}
    for one in curves:
        key = (one.id, one.process)
        if one.covered_seconds > 0 and (key not in best or one.covered_seconds > best[key].covered_seconds):
            best[key] = one
    return list(best.values())


@dataclass
class RankSystem:
    """What one rank sampled.

    Attributes:
        rank: its index.
        curves: by process and name of the meter.
        faults: name of a part to why it did not answer, the first time.
        skipped: lines that hold something else.
        buckets: the samples thinned, for the series; of rank 0 alone.
    """

    rank: int
    curves: dict[tuple[int, str], MeterCurve] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    buckets: Thinned[SystemBucket] = field(default_factory=Thinned)

    def add(self, lines: Sequence[SystemLine]) -> None:
        """Take in samples in the order written."""
        for process, group in itertools.groupby(lines, key=lambda line: line.process):
            part = list(group)
            for line in part:
                for name, why in line.faults.items():
                    self.faults.setdefault(name, why)
                if line.meters:
                    self._describe(process, line)
            self._add_part(process, part)

    def _add_part(self, process: int, part: list[SystemLine]) -> None:
        believed = part if self._believes(process, part) else [line for line in part if self._believes(process, [line])]
        self.skipped += len(part) - len(believed)
        for curve, times, values in self._readings(process, believed):
            curve.extend(times, values)
        if self.rank == 0 and believed:
            self.buckets.take(process, believed, SystemBucket.of)

    def _believes(self, process: int, lines: Sequence[SystemLine]) -> bool:
        """Whether meters can read so."""
        try:
            for curve, _, values in self._readings(process, lines):
                believable(min(values), curve.unit, curve.range_joules)
                believable(max(values), curve.unit, curve.range_joules)
        except ValueError:
            return False
        return True

    def _readings(
        self, process: int, lines: Sequence[SystemLine]
    ) -> Iterator[tuple[MeterCurve, list[float], list[float]]]:
        """Times and values of each meter in its own unit; the sampler adds the watts of counters, for plots."""
        for unit in ("joules", "watts"):
            told: list[dict[str, float]] = [getattr(line, unit) for line in lines]
            for name, values in by_name(told):
                curve = self.curves.get((process, name))
                if curve is not None and curve.unit == unit:
                    yield (
                        curve,
                        [line.at_seconds for line, part in zip(lines, told, strict=True) if name in part],
                        values,
                    )

    def _describe(self, process: int, line: SystemLine) -> None:
        for name, told in line.meters.items():
            if (process, name) not in self.curves:
                self.curves[process, name] = MeterCurve(
                    name, process, told.id, told.machine, told.source, told.unit, told.range_joules, told.note
                )


class SystemReader:
    """Adds up a file of samples that grows.

    Attributes:
        tail: of the file.
        sums: of what has been read.
    """

    def __init__(self, path: Path, rank: int) -> None:
        """Nothing is read before ``look``.

        Args:
            path: ``system.jsonl`` or ``system.rankN.jsonl``.
            rank: whose it is.
        """
        self.tail, self.sums = Tail(path), RankSystem(rank)

    def look(self) -> None:
        """Take in what came since the last look; a line that is no sample is skipped and counted.

        Raises:
            OutputError: the file cannot be read, or was written by a newer version.
            Replaced: it does not go on from where it was left.
        """
        for block in self.tail.blocks():
            lines, skipped = system_reader().read(block)
            self.sums.add(lines)
            self.sums.skipped += skipped
