"""The samples of ``system.jsonl`` of a rank: as columns, and the energy that its meters read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from hf_efficient.accounting.steps import Column, Columns, column, joined, table
from hf_efficient.estimate.cost import joules_between
from hf_efficient.records.events import Meter, SystemSample
from hf_efficient.run_dir.jsonl import LineReader, Tail

_NAN = float("nan")
SYSTEM_BYTES = ("rss_bytes", "host_available_bytes", "device_allocated_bytes", "device_reserved_bytes")


@dataclass(frozen=True)
class SystemColumns(Columns):
    """Samples of one rank, a row each (see ``SystemSample``); of ranks other than 0 the meters alone. GPU columns are
    ``GPU/figure``; throttled ones, ``GPU/reason``, are 1 where it was held back."""

    process: Column
    at_seconds: Column
    joules: Mapping[str, Column]
    watts: Mapping[str, Column]
    bytes: Mapping[str, Column]
    host: Mapping[str, Column]
    gpus: Mapping[str, Column]
    throttled: Mapping[str, Column]

    ABSENT: ClassVar[Mapping[str, float]] = {"throttled": 0.0}


def _columns_of(lines: Sequence[SystemSample], *, whole: bool) -> SystemColumns:
    loads = lines if whole else ()
    return SystemColumns(
        process=column([line.process for line in lines]),
        at_seconds=column([line.at_seconds for line in lines]),
        joules=table([line.joules for line in lines], _NAN),
        watts=table([line.watts for line in lines], _NAN),
        bytes={name: column([getattr(line, name) for line in loads]) for name in SYSTEM_BYTES if whole},
        host=table([line.host for line in loads], _NAN),
        gpus=table([_flat(line.gpus) for line in loads], _NAN),
        throttled=table(
            [_flat({gpu: dict.fromkeys(why, 1.0) for gpu, why in line.throttled.items()}) for line in loads]
        ),
    )


def _flat(of_gpus: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {f"{gpu}/{name}": value for gpu, figures in of_gpus.items() for name, value in figures.items()}


@dataclass
class RankSystem:
    """What one rank sampled; ``faults`` has why a part did not answer, the first time."""

    LINES: ClassVar[LineReader[SystemSample]] = LineReader(SystemSample, "sample")

    rank: int
    meters: dict[tuple[int, str], Meter] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    _blocks: list[SystemColumns] = field(default_factory=list)

    def read(self, tail: Tail) -> None:
        self.skipped += self.LINES.read(tail, self.add)

    def add(self, lines: Sequence[SystemSample]) -> None:
        for line in lines:
            for name, why in line.faults.items():
                self.faults.setdefault(name, why)
            for name, meter in line.meters.items():
                self.meters[line.process, name] = meter
        self._blocks.append(_columns_of(lines, whole=self.rank == 0))

    @property
    def columns(self) -> SystemColumns:
        self._blocks = [joined(self._blocks) if self._blocks else _columns_of([], whole=self.rank == 0)]
        return self._blocks[0]

    def curves(self) -> list[MeterCurve]:
        """What each meter read in each process; none of one that was read in no two samples. A reading from before an
        earlier one is left out."""
        samples, found = self.columns, []
        for (process, name), meter in self.meters.items():
            values = getattr(samples, meter.unit).get(name)
            if values is not None:
                most = meter.range_joules or np.inf
                read = (samples.process == process) & (values >= 0) & (values <= most)  # NaN is neither
                times = samples.at_seconds[read]
                kept = times >= np.maximum.accumulate(times)
                found.append(MeterCurve(name, process, meter, times[kept], values[read][kept]))
        return [one for one in found if one.covered_seconds > 0]


@dataclass(frozen=True)
class MeterCurve:
    """The readings of one meter in one process, in the order of their times."""

    name: str
    process: int
    meter: Meter
    times: Column
    values: Column

    @cached_property
    def _stretches(self) -> tuple[Column, Column]:
        """Joules and seconds between each two readings; 0 where the readings give none."""
        before, after = (self.times[:-1], self.values[:-1]), (self.times[1:], self.values[1:])
        joules = joules_between(before, after, self.meter.unit, self.meter.range_joules)
        return np.nan_to_num(joules), np.where(np.isnan(joules), 0.0, np.diff(self.times))

    @cached_property
    def flowed(self) -> Column:
        """Joules until each of ``times``."""
        return np.concatenate([[0.0], np.cumsum(self._stretches[0])])

    @property
    def joules(self) -> float:
        """From the first reading to the last, as far as the readings go."""
        return float(self.flowed[-1])

    @property
    def covered_seconds(self) -> float:
        return float(np.cumsum(self._stretches[1])[-1]) if len(self.times) > 1 else 0.0

    def until(self, at: Column) -> Column:
        """What had flowed by then; between two readings it flows evenly."""
        return np.interp(at, self.times, self.flowed)


def once_each(ranks: Iterable[RankSystem]) -> list[MeterCurve]:
    """All meters; one that two ranks read is counted once, by the one that read it longer."""
    best: dict[tuple[str, int], MeterCurve] = {}
    for one in (curve for rank in ranks for curve in rank.curves()):
        key = (one.meter.id, one.process)
        if key not in best or one.covered_seconds > best[key].covered_seconds:
            best[key] = one
    return list(best.values())
