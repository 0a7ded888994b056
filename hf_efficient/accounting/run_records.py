"""All records of a run, added up in one pass: at once, or while they grow."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.accounting.processes import ProcessSpans, SpansReader
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.accounting.system import RankSystem
from hf_efficient.errors import OutputError
from hf_efficient.facts.environment import allowed_cpus
from hf_efficient.run_dir.paths import rank_files, records_path
from hf_efficient.run_dir.reading import Replaced, Tail

_WORTH_A_PROCESS_BYTES = 64 << 20
"""Half a second of reading; a process is there after about a quarter."""

_SUMS: dict[str, type[RankSteps] | type[RankSystem]] = {"steps": RankSteps, "system": RankSystem}


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


class FileReader:
    """A file of steps or samples that grows, and what was read of it; ``fault``: why the last look failed."""

    def __init__(self, path: Path, kind: str, rank: int) -> None:
        self.kind = kind
        self.tail = Tail(path)
        self.sums = _SUMS[kind](rank)
        self.fault: Replaced | OutputError | None = None

    def look(self) -> FileReader:
        """Take in what came since the last look; a line that is no record is skipped and counted."""
        try:
            for block in self.tail.blocks():
                lines, skipped = self.sums.LINES.read(block)
                self.sums.skipped += skipped
                if lines:
                    self.sums.add(lines)  # type: ignore[arg-type]
        except (Replaced, OutputError) as fault:
            self.fault = fault
        return self


class RunReader:
    """Reads the files of a run, then only what they have grown by, or all of a new run. The folder may come later."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._spans: dict[int, SpansReader] = {}
        self._files: dict[Path, FileReader] = {}

    def look(self) -> RunRecords:
        """The records as they are now; they are only good until the next look. Raises ``OutputError``: a file cannot be
        read, or was written by a newer version."""
        ranks = sorted({0, *rank_files(self._directory, "spans")})
        for rank in ranks:
            self._spans.setdefault(rank, SpansReader(records_path(self._directory, "spans", rank)))
        lived = {rank: self._spans[rank].look() for rank in ranks}
        files = self._look_at_files()
        skipped = {self._spans[rank].path.name: self._spans[rank].skipped for rank in lived}
        skipped |= {one.tail.path.name: one.sums.skipped for one in files}
        return RunRecords(
            self._directory,
            lived.pop(0),
            [one.sums for one in files if isinstance(one.sums, RankSteps)],
            [one.sums for one in files if isinstance(one.sums, RankSystem)],
            {name: count for name, count in skipped.items() if count},
            lived,
        )

    def _look_at_files(self) -> list[FileReader]:
        paths = [(path, kind, rank) for kind in _SUMS for rank, path in rank_files(self._directory, kind).items()]
        looked = _look_at_all([self._files.get(path) or FileReader(path, kind, rank) for path, kind, rank in paths])
        anew = lambda one: FileReader(one.tail.path, one.kind, one.sums.rank).look()  # noqa: E731
        found = [anew(one) if isinstance(one.fault, Replaced) else one for one in looked]
        self._files = {one.tail.path: one for one in found if one.fault is None}  # a faulty one begins again
        _raise_first(found)
        return list(self._files.values())


def read_system(directory: Path) -> list[RankSystem]:
    """What the ranks of a run have sampled; raises OutputError where a file cannot be read."""
    files = _look_at_all([FileReader(path, "system", rank) for rank, path in rank_files(directory, "system").items()])
    _raise_first(files)
    return [one.sums for one in files if isinstance(one.sums, RankSystem) and one.fault is None]


def _raise_first(files: Sequence[FileReader]) -> None:
    for one in files:
        if isinstance(one.fault, OutputError):
            raise one.fault


def _look_at_all(readers: Sequence[FileReader]) -> list[FileReader]:
    """Let each of them look: one after the other, or, where there is much to read, by a process per core."""
    unread = [reader.tail.unread_bytes for reader in readers]
    workers = min(allowed_cpus(), sum(size > 0 for size in unread))
    # An interpreter, and not a program that one is part of.
    is_python = bool(sys.executable) and Path(sys.executable).stem.startswith(("python", "pypy"))
    if workers < 2 or sum(unread) < _WORTH_A_PROCESS_BYTES or not is_python:
        return [reader.look() for reader in readers]
    shares: list[list[int]] = [[] for _ in range(workers)]
    for index in sorted(range(len(readers)), key=lambda index: -unread[index]):
        min(shares, key=lambda share: sum(unread[held] for held in share)).append(index)
    with ThreadPoolExecutor(workers) as pool:
        answers = pool.map(lambda share: _look_apart([readers[index] for index in share]), shares)
        found: dict[int, FileReader] = {}
        for share, looked in zip(shares, answers, strict=True):
            found.update(zip(share, looked, strict=True))
    return [found[index] for index in range(len(readers))]


def _look_apart(readers: list[FileReader]) -> list[FileReader]:
    """By a process of its own, which is started as a program. That takes no fork of threads or a CUDA context, and no
    second run of a script without ``if __name__ == "__main__"``. Where no process can be had, or it is killed, this one
    reads."""
    command = [sys.executable, "-m", "hf_efficient.accounting.look_worker"]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(command, input=pickle.dumps(readers), capture_output=True, env=environment, check=True)
        found, logged = pickle.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, EOFError, pickle.PickleError):
        return [reader.look() for reader in readers]
    for name, level, message in logged:
        logging.getLogger(name).log(level, message)
    return found
