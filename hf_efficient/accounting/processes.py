"""The processes that a run lived in, from the spans of one rank."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records import events
from hf_efficient.run_dir.jsonl import check_version, parse_line

logger = logging.getLogger(__name__)

_Facts = TypeVar("_Facts")


@dataclass
class ProcessSpans:
    """What the spans say of one process; all times count from its start. ``trains`` and ``train_ends`` are by segment.
    ``end`` is None where none was written or a heartbeat followed; ``alive`` is the last heartbeat without an end.
    Facts are by topic, notes by kind (``evaluation``, ``save``, ...); ``work``: each time that it was stated."""

    process: int
    way: events.RecordedBy = "unknown"
    start_from: events.StartFrom = "records"
    began_at_seconds: float = 0.0
    last_at_seconds: float = 0.0
    spans: list[events.SpanLine] = field(default_factory=list)
    trains: dict[int, float] = field(default_factory=dict)
    train_ends: dict[int, events.TrainEndLine] = field(default_factory=dict)
    end: events.EndLine | None = None
    alive: events.AliveLine | None = None
    memory: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    work: list[events.WorkFacts] = field(default_factory=list)
    notes: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def take(self, line: _Known) -> None:
        match line:
            case events.ProcessLine():
                self.way, self.start_from = line.way, line.process_start_from
                self.began_at_seconds = self.last_at_seconds = line.began_at_seconds
            case events.SpanLine():
                self.spans.append(line)
                self._until(line.ends_at_seconds)
            case events.TrainLine():
                self.trains[line.segment] = line.at_seconds
                self._until(line.at_seconds)
            case events.TrainEndLine():
                self.train_ends[line.segment] = line
                self._until(line.at_seconds)
            case events.EndLine():
                self.end, self.alive = line, None
                self._until(line.at_seconds, line.memory)
            case events.AliveLine():
                self.alive = line
                self._until(line.at_seconds, line.memory)

    def state(self, facts: dict[str, dict[str, Any]]) -> None:
        for topic, stated in facts.items():
            self.facts.setdefault(topic, {}).update(stated)
        if "work" in facts and (work := self.stated("work", events.WorkFacts)) is not None:
            self.work.append(work)

    def stated(self, topic: str, kind: type[_Facts]) -> _Facts | None:
        """What it said of a topic; None where it said nothing, or what this version does not understand."""
        try:
            return msgspec.convert(self.facts[topic], kind) if topic in self.facts else None
        except msgspec.ValidationError:
            return None

    def called_at_seconds(self, segment: int) -> float:
        """Time of a ``train()`` call; before its line is written, the latest time of any line."""
        return self.trains.get(segment, self.last_at_seconds)

    @property
    def died(self) -> bool:
        return self.end is None or self.alive is not None

    def _until(self, seconds: float, memory: dict[str, int] | None = None) -> None:
        self.last_at_seconds = max(self.last_at_seconds, seconds)
        for name, value in (memory or {}).items():
            self.memory[name] = max(value, self.memory.get(name, 0))


_Known = (
    events.ProcessLine | events.SpanLine | events.TrainLine | events.TrainEndLine | events.EndLine | events.AliveLine
)
_KINDS: dict[str, type[_Known]] = {kind.__struct_config__.tag: kind for kind in get_args(_Known)}


def last_stated(processes: Iterable[ProcessSpans], topic: str, kind: type[_Facts]) -> _Facts | None:
    stated = (one.stated(topic, kind) for one in reversed(list(processes)))
    return next((facts for facts in stated if facts is not None), None)


class SpansReader:
    """Reads ``spans.jsonl`` of a rank, whole at each look, since its end is rewritten; counts ``skipped`` lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        self._warned: set[int] = set()

    def look(self) -> list[ProcessSpans]:
        """The processes in the order of their starts; none where the file is missing. Raises ``OutputError``: the file
        cannot be read, or was written by a newer version."""
        self.skipped = 0
        found: dict[int, ProcessSpans] = {}
        lines = self._lines()
        for number, line in enumerate(lines, start=1):
            data = parse_line(line)
            if data is not None:
                check_version(self.path, number, data)
                fault = _take(found, data)
            else:
                is_half = number == len(lines) and line.lstrip().startswith(b"{")
                fault = "" if is_half or not line.strip() else "not a JSON object"
            if fault:
                self.skipped += 1
            if fault and number not in self._warned:
                self._warned.add(number)
                logger.warning("%s:%d is %s; it is skipped", self.path, number, fault)
        return list(found.values())

    def _lines(self) -> list[bytes]:
        try:
            return self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            why = f"{self.path}: cannot be read ({error.strerror}); name a run's {self.path.name}"
            raise OutputError(why) from error


def _take(found: dict[int, ProcessSpans], data: dict[str, Any]) -> str:
    """Add a line to its process; says why where it holds something else."""
    kind, number = data.get("kind"), data.get("process")
    if not isinstance(kind, str) or type(number) is not int:
        return f"not a span record: kind is {kind!r}, process {number!r}"
    try:
        line = msgspec.convert(data, _KINDS[kind]) if kind in _KINDS else None
        facts = msgspec.convert(data["facts"], dict[str, dict[str, Any]]) if kind == "facts" else None
    except (KeyError, msgspec.ValidationError) as error:
        return f"not a span record: {type(error).__name__}: {error}"
    process = found.setdefault(number, ProcessSpans(number))
    if line is not None:
        process.take(line)
    elif facts is not None:
        process.state(facts)
    else:
        process.notes.setdefault(kind, []).append(data)
    return ""
