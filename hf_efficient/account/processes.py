"""The processes that a run lived in, from the spans of one rank."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_efficient.account.reading import check_version, read_lines
from hf_efficient.account.span_lines import check_span_line
from hf_efficient.records import RecordedBy

__all__ = ["Interval", "ProcessSpans", "read_processes", "take_line"]

logger = logging.getLogger(__name__)

Interval = tuple[float, float, dict[str, float]]
"""Start and end, counted from the start of the process, and the seconds of the phases in between."""


@dataclass
class ProcessSpans:
    """What the spans tell of one process.

    Attributes:
        process: its number.
        way: how the run was recorded.
        start_from: what told the start of the process.
        began_at_seconds: where the run took the process over; all times count from the start of the process.
        last_at_seconds: the latest time that any line tells.
        phase_seconds: sums of the spans.
        spans: each by itself.
        last_span_ends_at_seconds: end of the last span.
        trains: segment of the steps to the time of its ``train()`` call.
        train_ends: segment to the line that tells the end of the call.
        ended: None where no end was written, or a sign of life came after it.
        error: what ended it.
        alive: the sign of life that a process left that ended without a word.
        memory: peaks.
        facts: what the process said of itself, by topic (``work``, ``price``, ``grid``, ``memory``, ...).
        work: segment of the steps to what its ``train()`` call said of its work.
        notes: other lines, by kind, in the order written (``evaluation``, ``answers``, ``budget``).
    """

    process: int
    way: RecordedBy = "unknown"
    start_from: Literal["kernel", "psutil", "import", "records"] = "records"
    began_at_seconds: float = 0.0
    last_at_seconds: float = 0.0
    phase_seconds: dict[str, float] = field(default_factory=dict)
    spans: list[Interval] = field(default_factory=list)
    last_span_ends_at_seconds: float = 0.0
    trains: dict[int, float] = field(default_factory=dict)
    train_ends: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended: Literal["done", "stopped", "error"] | None = None
    error: str | None = None
    alive: dict[str, Any] | None = None
    memory: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    work: dict[int, dict[str, Any]] = field(default_factory=dict)
    notes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        """Take in one line, which holds what its kind does (see ``span_lines.py``)."""
        kind = line["kind"]
        if kind == "process":
            self.way, self.start_from = line["way"], line["process_start_from"]
            self.began_at_seconds = self.last_at_seconds = float(line["began_at_seconds"])
        elif kind == "span":
            for name, seconds in line["phase_seconds"].items():
                self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + seconds
            self.last_span_ends_at_seconds = line["started_at_seconds"] + line["wall_seconds"]
            self.spans.append((line["started_at_seconds"], self.last_span_ends_at_seconds, line["phase_seconds"]))
            self._until(self.last_span_ends_at_seconds)
        elif kind == "train":
            self.trains[int(line["segment"])] = float(line["at_seconds"])
            self._until(line["at_seconds"])
        elif kind == "train_end":
            self.train_ends[int(line["segment"])] = line
            self._until(line["at_seconds"])
        elif kind == "end":
            self.ended, self.error, self.alive = line["ended"], line["error"], None
            self._until(line["at_seconds"])
            self._memory(line["memory"])
        elif kind == "alive":
            self.alive = line
            self._until(line["at_seconds"])
            self._memory(line["memory"])
        elif kind == "facts":
            for topic, facts in line["facts"].items():
                self.facts.setdefault(topic, {}).update(facts)
            if self.trains and "work" in line["facts"]:
                self.work[next(reversed(self.trains))] = line["facts"]["work"]
        else:
            self.notes.setdefault(kind, []).append(line)

    def called_at_seconds(self, segment: int) -> float:
        """Time of a ``train()`` call; of one whose line is not written yet, the latest time that any line tells.

        Steps and spans are written by a thread each, so that the steps may come first.
        """
        return self.trains.get(segment, self.last_at_seconds)

    def copy(self) -> ProcessSpans:
        """One that can be added to by itself."""
        return ProcessSpans(**{name: _copied(value) for name, value in vars(self).items()})

    def _until(self, seconds: float) -> None:
        self.last_at_seconds = max(self.last_at_seconds, seconds)

    def _memory(self, peaks: dict[str, int]) -> None:
        for name, value in peaks.items():
            self.memory[name] = max(value, self.memory.get(name, 0))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(held) for key, held in value.items()}
    return list(value) if isinstance(value, list) else value


def read_processes(path: Path) -> list[ProcessSpans]:
    """The processes in the order of their starts; none where the file is missing. Broken lines are skipped and logged.

    Raises:
        OutputError: the file cannot be read, or was written by a newer version.
    """
    processes: dict[int, ProcessSpans] = {}
    if not path.exists():
        return []
    for number, line in read_lines(path):
        try:
            take_line(processes, path, number, line)
        except ValueError as fault:
            logger.warning("%s:%d is %s; it is skipped", path, number, fault)
    return list(processes.values())


def take_line(processes: dict[int, ProcessSpans], path: Path, number: int, line: dict[str, Any]) -> None:
    """Add one line to its process.

    Args:
        processes: by number, in the order of their starts.
        path: of the file, and
        number: of the line in it, for messages.
        line: what it holds.

    Raises:
        OutputError: it was written by a newer version.
        ValueError: it holds something else; nothing is taken in.
    """
    check_version(path, number, line)
    check_span_line(line)
    processes.setdefault(line["process"], ProcessSpans(line["process"])).add(line)
