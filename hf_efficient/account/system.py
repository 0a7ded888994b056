"""The samples of ``system.jsonl`` of all ranks, meter by meter."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_efficient.account.reading import check_version, rank_files, read_lines
from hf_efficient.estimate.metering import believable

__all__ = ["MeterSeries", "SystemSamples", "read_samples"]


@dataclass
class MeterSeries:
    """The readings of one meter in one process.

    Attributes:
        name: what it meters.
        process: number of the process on its rank.
        id: what it is; the same where two processes read the same.
        machine: where it is.
        source: ``nvml``, ``rapl`` or ``estimate``.
        unit: ``joules`` of a counter, or ``watts``.
        range_joules: where the counter starts again from 0; None where it does not.
        note: what to know of it.
        seconds: times of the readings, counted from the start of the process.
        values: the readings.
    """

    name: str
    process: int
    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    range_joules: float | None
    note: str
    seconds: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))

    @property
    def readings(self) -> Iterator[tuple[float, float]]:
        """Seconds and values."""
        return zip(self.seconds, self.values, strict=True)


@dataclass
class SystemSamples:
    """What the samples hold for the account.

    Attributes:
        series: 16 bytes per reading.
        faults: name of a part to why it did not answer, the first time.
        skipped: lines that hold something else.
    """

    series: list[MeterSeries] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    skipped: int = 0


def read_samples(directory: Path) -> SystemSamples:
    """One pass over the files of all ranks; a line that is no sample is skipped and counted.

    Raises:
        OutputError: a file cannot be read, or was written by a newer version.
    """
    found = SystemSamples()
    for path in rank_files(directory, "system").values():
        series: dict[tuple[int, str], MeterSeries] = {}
        for number, line in read_lines(path):
            check_version(path, number, line)
            try:
                _take(line, series, found.faults)
            except (KeyError, TypeError, ValueError, AttributeError):
                found.skipped += 1
        found.series += series.values()
    return found


def _take(line: dict[str, Any], series: dict[tuple[int, str], MeterSeries], faults: dict[str, str]) -> None:
    process, at = int(line["process"]), float(line["at_seconds"])
    for name, told in line.get("meters", {}).items():
        if (process, name) not in series:
            series[process, name] = MeterSeries(
                name=name,
                process=process,
                id=told["id"],
                machine=told["machine"],
                source=told["source"],
                unit=told["unit"],
                range_joules=told.get("range_joules"),
                note=told["note"],
            )
    for name, why in line.get("faults", {}).items():
        faults.setdefault(name, str(why))
    for unit in ("joules", "watts"):
        for name, value in line.get(unit, {}).items():
            one = series.get((process, name))
            if one is not None and one.unit == unit:
                value = believable(float(value), one.unit, one.range_joules)
                if not one.seconds or at >= one.seconds[-1]:
                    one.seconds.append(at)
                    one.values.append(value)
