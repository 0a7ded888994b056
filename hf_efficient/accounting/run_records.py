"""The records of a run: the processes that it lived in, from the spans of each rank; and all of them, read in one pass,
at once or while they grow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from hf_efficient.accounting.steps import RankSteps, SegmentSteps
from hf_efficient.accounting.system import RankSystem
from hf_efficient.records import events
from hf_efficient.run_dir.jsonl import Replaced, Tail, each_object
from hf_efficient.run_dir.paths import rank_files

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
        if isinstance(line, events.ProcessLine):
            self.way, self.start_from = line.way, line.process_start_from
            self.began_at_seconds = self.last_at_seconds = line.began_at_seconds
            return
        match line:
            case events.SpanLine():
                self.spans.append(line)
            case events.TrainLine():
                self.trains[line.segment] = line.at_seconds
            case events.TrainEndLine():
                self.train_ends[line.segment] = line
            case events.EndLine():
                self.end, self.alive = line, None
            case events.AliveLine():
                self.alive = line
        until = line.ends_at_seconds if isinstance(line, events.SpanLine) else line.at_seconds
        self.last_at_seconds = max(self.last_at_seconds, until)
        for name, value in (line.memory if isinstance(line, events.EndLine | events.AliveLine) else {}).items():
            self.memory[name] = max(value, self.memory.get(name, 0))

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

    def ends_at_seconds(self, segment: SegmentSteps) -> float:
        return self.called_at_seconds(segment.segment) + segment.last_ends_at_seconds

    @property
    def died(self) -> bool:
        return self.end is None or self.alive is not None


_Known = (
    events.ProcessLine | events.SpanLine | events.TrainLine | events.TrainEndLine | events.EndLine | events.AliveLine
)
_KINDS: dict[str, type[_Known]] = {kind.__struct_config__.tag: kind for kind in get_args(_Known)}


def last_stated(processes: Iterable[ProcessSpans], topic: str, kind: type[_Facts]) -> _Facts | None:
    stated = (one.stated(topic, kind) for one in reversed(list(processes)))
    return next((facts for facts in stated if facts is not None), None)


@dataclass
class RankSpans:
    """The processes of a rank by number, in the order of their starts; ``skipped``: lines that hold something else."""

    rank: int
    processes: dict[int, ProcessSpans] = field(default_factory=dict)
    skipped: int = 0
    _told: set[int] = field(default_factory=set)

    def read(self, tail: Tail) -> None:
        """The whole file at each look, since its end is rewritten."""
        self.processes, self.skipped = {}, 0
        for block in Tail(tail.path).blocks():
            self.skipped += each_object(block, self._take, self._told)

    def _take(self, data: dict[str, Any]) -> str:
        kind, number = data.get("kind"), data.get("process")
        if not isinstance(kind, str) or type(number) is not int:
            return f"not a span record: kind is {kind!r}, process {number!r}"
        try:
            line = msgspec.convert(data, _KINDS[kind]) if kind in _KINDS else None
            facts = msgspec.convert(data["facts"], dict[str, dict[str, Any]]) if kind == "facts" else None
        except (KeyError, msgspec.ValidationError) as error:
            return f"not a span record: {type(error).__name__}: {error}"
        process = self.processes.setdefault(number, ProcessSpans(number))
        if line is not None:
            process.take(line)
        elif facts is not None:
            process.state(facts)
        else:
            process.notes.setdefault(kind, []).append(data)
        return ""


_Sums = RankSpans | RankSteps | RankSystem
_SUMS: dict[str, type[_Sums]] = {"spans": RankSpans, "steps": RankSteps, "system": RankSystem}


@dataclass(frozen=True)
class RunRecords:
    """What the files of a run hold: processes of rank 0 in the order of their starts (``others``: of other ranks),
    the steps and samples of each rank with a file, rank 0 first, and by file how many lines were skipped."""

    directory: Path
    processes: Sequence[ProcessSpans]
    ranks: Sequence[RankSteps]
    system: Sequence[RankSystem]
    unreadable: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[int, Sequence[ProcessSpans]] = field(default_factory=dict)

    @property
    def first(self) -> RankSteps:
        """The steps of rank 0."""
        return next((rank for rank in self.ranks if rank.rank == 0), RankSteps(0))


class RunReader:
    """Reads the files of a run, then only what they have grown by, or all of a new run. The folder may come later."""

    def __init__(self, directory: Path, kinds: Sequence[str] = tuple(_SUMS)) -> None:
        self._directory, self._kinds = directory, kinds
        self._files: dict[Path, tuple[Tail, _Sums]] = {}

    def look(self) -> RunRecords:
        """The records as they are now; they are only good until the next look. Raises ``OutputError``: a file cannot be
        read, or was written by a newer version."""
        files = [(kind, *one) for kind in self._kinds for one in rank_files(self._directory, kind).items()]
        found = [self._look_at(path, kind, rank) for kind, rank, path in files]
        lived = {one.rank: list(one.processes.values()) for one in found if isinstance(one, RankSpans)}
        return RunRecords(
            self._directory,
            lived.pop(0, []),
            [one for one in found if isinstance(one, RankSteps)],
            [one for one in found if isinstance(one, RankSystem)],
            {path.name: one.skipped for (_, _, path), one in zip(files, found, strict=True) if one.skipped},
            lived,
        )

    def _look_at(self, path: Path, kind: str, rank: int) -> _Sums:
        """A file that is faulty is read anew at the next look."""
        tail, sums = self._files.pop(path, (Tail(path), _SUMS[kind](rank)))
        try:
            sums.read(tail)
        except Replaced:
            return self._look_at(path, kind, rank)
        self._files[path] = (tail, sums)
        return sums
