"""What the lines of ``spans.jsonl`` must hold, kind by kind, so that one which does not is left out as a whole.

The processes that a run lived in, from the spans of one rank.

The spans of a run that goes on: its file grows, and its last line, a sign of life, is written over in place.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records.account import RecordedBy
from hf_efficient.run_dir.reading import Replaced, check_version, parse_line, read_lines


class _Process(msgspec.Struct):
    way: RecordedBy
    process_start_from: Literal["kernel", "psutil", "import", "records"]
    began_at_seconds: float


class _Span(msgspec.Struct):
    started_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]


class _Train(msgspec.Struct):
    segment: int
    at_seconds: float


class _End(msgspec.Struct):
    ended: Literal["done", "stopped", "error"]
    error: str | None
    at_seconds: float
    memory: dict[str, int]


class _TrainEnd(msgspec.Struct):
    segment: int
    ended: Literal["done", "stopped", "error"]
    error: str | None
    at_seconds: float


class _Alive(msgspec.Struct):
    at_seconds: float
    started_at_seconds: float
    open_phase: str | None
    phase_seconds: dict[str, float]
    memory: dict[str, int]


class _Price(msgspec.Struct):
    price_usd_per_hour: float | None
    source: str | None = None
    estimated: bool = False
    reason: str | None = None


class _Grid(msgspec.Struct):
    grams_per_kwh: float
    source: str


class _Work(msgspec.Struct):
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_reason: str | None = None
    accelerators: int = 1
    dtype: str | None = None
    reason: str | None = None
    hardware_reason: str | None = None


class _Category(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    bytes: int
    how: str
    note: str


class _Memory(msgspec.Struct):
    device: str
    categories: list[_Category] = []
    positions: int | None = None


class _Data(msgspec.Struct):
    fill_rate: float | None = None


class _Plan(msgspec.Struct):
    """Whole, or without a device: then it holds no figures, and says why there is no plan."""

    device: str | None = None
    steps: int = 0
    positions: int = 0
    categories: dict[str, int] = {}
    reasons: dict[str, str] = {}
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    training_seconds: float | None = None
    training_cost_usd: float | None = None
    training_energy_joules: float | None = None


class _Limits(msgspec.Struct):
    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None


class _Run(msgspec.Struct):
    max_steps: int | None = None
    evaluate_every: int | None = None
    evaluate_from: int = 0
    evaluate_after: bool = False
    save_every: int | None = None
    save_best: bool = False


class _Known(msgspec.Struct):
    price: _Price | None = None
    grid: _Grid | None = None
    work: _Work | None = None
    memory: _Memory | None = None
    data: _Data | None = None
    budget: _Limits | None = None
    run: _Run | None = None
    plan: _Plan | None = None


class _Gap(msgspec.Struct):
    what: str
    why: str


class _Topic(msgspec.Struct):
    missing: list[_Gap] = []


class _Facts(msgspec.Struct):
    facts: dict[str, _Topic]


class _KnownFacts(msgspec.Struct):
    facts: _Known


class _Timed(msgspec.Struct):
    seconds: float | None = None


class _Reached(msgspec.Struct):
    reached: str | None = None
    step: int | None = None


_KINDS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "process": (_Process,),
    "span": (_Span,),
    "train": (_Train,),
    "train_end": (_TrainEnd,),
    "end": (_End,),
    "alive": (_Alive,),
    "facts": (_Facts, _KnownFacts),
    "evaluation": (_Timed,),
    "save": (_Timed,),
    "budget": (_Reached,),
}
"""Of each kind what it holds; keys that are not named are not looked at, nor kinds of a later version."""


def check_span_line(line: Mapping[str, Any]) -> None:
    """Refuse a line that does not hold what its kind does.

    Raises:
        ValueError: it does not; says why.
    """
    try:
        for name, kind in (("kind", str), ("process", int)):
            if not isinstance(line[name], kind) or isinstance(line[name], bool):
                raise ValueError(f"{name} is {line[name]!r}")
        for expected in _KINDS.get(line["kind"], ()):
            msgspec.convert(line, expected)
        json.dumps(line, allow_nan=False)  # strict JSON is what was written
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ValueError(f"not a span record: {type(error).__name__}: {error}") from error


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


_MARK_BYTES = 256


class SpanTail:
    """Reads a file of spans from where it was left, and what may still change in it anew each time.

    What does not change any more: the lines up to the last whole one that is no sign of life, as long as none of them
    is broken, which may be one that is being written over at this moment.

    Attributes:
        processes: what ``read_processes`` would have given at the last look; good until the next one.
        skipped: lines that hold something else, but for a last one that is a record's beginning.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read before ``look``."""
        self.path = path
        self.processes: list[ProcessSpans] = []
        self.skipped = self._kept_skipped = 0
        self._kept: dict[int, ProcessSpans] = {}
        self._offset = 0
        self._lines = self._told = 0
        self._mark = b""

    def look(self) -> None:
        """Read them as they are now.

        Raises:
            OutputError: the file cannot be read, or was written by a newer version.
            Replaced: it does not go on from where it was left.
        """
        lines = self._new_lines()
        records = [parse_line(line) for line in lines]
        settled = _settled(records[:-1])  # the last one has no newline
        for number, record in enumerate(records[:settled], start=self._lines + 1):
            assert record is not None
            self._kept_skipped += not self._take(self._kept, number, record)
        self._leave_at(lines[:settled])
        self.skipped = self._kept_skipped
        found = dict(self._kept)
        copied: set[int] = set()
        for number, (line, record) in enumerate(zip(lines[settled:], records[settled:], strict=True), self._lines + 1):
            if record is not None:
                _copy_once(found, record, copied)
                self.skipped += not self._take(found, number, record)
            elif number == self._lines + len(lines) - settled and line.strip()[:1] in (b"", b"{"):
                self._tell(logging.INFO, number, "half-written and skipped" if line.strip() else "")
            elif line.strip():
                self.skipped += 1
                self._tell(logging.WARNING, number, "not a JSON object and skipped")
        self.processes = list(found.values())

    def _take(self, processes: dict[int, ProcessSpans], number: int, record: dict[str, Any]) -> bool:
        try:
            take_line(processes, self.path, number, record)
        except ValueError as fault:
            self._tell(logging.WARNING, number, f"{fault}; it is skipped")
            return False
        return True

    def _tell(self, level: int, number: int, what: str) -> None:
        """Once for each line, though what is not settled is read again."""
        if what and number > self._told:
            self._told = number
            logger.log(level, "%s:%d is %s", self.path, number, what)

    def _new_lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                mark, text = file.read(len(self._mark)), file.read()
        except FileNotFoundError as error:
            raise Replaced(str(self.path)) from error
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be read ({error.strerror})") from error
        if mark != self._mark:
            raise Replaced(str(self.path))
        return text.split(b"\n")

    def _leave_at(self, lines: list[bytes]) -> None:
        text = b"".join(line + b"\n" for line in lines)
        self._offset += len(text)
        self._lines += len(lines)
        self._mark = (self._mark + text)[-_MARK_BYTES:]


def _settled(records: list[dict[str, Any] | None]) -> int:
    """How many of the lines are settled."""
    settled = 0
    for at, record in enumerate(records, start=1):
        if record is None:
            break
        if record.get("kind") != "alive":
            settled = at
    return settled


def _copy_once(found: dict[int, ProcessSpans], record: dict[str, Any], copied: set[int]) -> None:
    number = record.get("process")
    if isinstance(number, int) and number in found and number not in copied:
        found[number] = found[number].copy()
        copied.add(number)
