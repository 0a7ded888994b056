"""Many files read at once: one after the other, or, where there is much to read, by a process per core.

All records of a run, added up in one pass: at once, or while they grow.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from hf_efficient.accounting.processes import ProcessSpans, SpanTail
from hf_efficient.accounting.steps import RankSteps, StepsReader
from hf_efficient.accounting.system import RankSystem, SystemReader
from hf_efficient.errors import OutputError
from hf_efficient.run_dir.reading import Replaced, rank_files, records_path

_WORTH_A_PROCESS_BYTES = 64 << 20
"""A third of a second of reading; a process is there after about a tenth."""

Reader = StepsReader | SystemReader
Looked = StepsReader | SystemReader | Replaced | OutputError
"""A reader that has seen what is new, or why it has not."""


def look_at(reader: Reader) -> Looked:
    """Let it take in what came since its last look."""
    try:
        reader.look()
    except (Replaced, OutputError) as fault:
        return fault
    return reader


def look_at_all(readers: Sequence[Reader]) -> list[Looked]:
    """Let each of them take in what came since its last look.

    Returns:
        Of each the reader, which may be another object than the one given, or why it could not.
    """
    unread = [reader.tail.unread_bytes for reader in readers]
    workers = min(_cores(), sum(size > 0 for size in unread))
    if workers < 2 or sum(unread) < _WORTH_A_PROCESS_BYTES or not _is_python():
        return [look_at(reader) for reader in readers]
    orders: SimpleQueue[int] = SimpleQueue()
    for index in sorted(range(len(readers)), key=lambda index: (readers[index].sums.rank != 0, -unread[index])):
        orders.put(index)  # rank 0, whose records are read for more, takes longest
    found: dict[int, Looked] = {}
    threads = [threading.Thread(target=_work_off, args=(orders, readers, found)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What is missing now no process could be had for, or it was killed.
    return [found[index] if index in found else look_at(reader) for index, reader in enumerate(readers)]


def _work_off(orders: SimpleQueue[int], readers: Sequence[Reader], found: dict[int, Looked]) -> None:
    command = [sys.executable, "-m", "hf_efficient.accounting.look_worker"]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while True:
                index = orders.get_nowait()
                pickle.dump(readers[index], process.stdin)
                process.stdin.flush()
                answer, logged = pickle.load(process.stdout)
                for name, level, message in logged:
                    logging.getLogger(name).log(level, message)
                found[index] = answer
    except (Empty, OSError, EOFError, pickle.PickleError):
        return


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_python() -> bool:
    """Whether ``sys.executable`` is an interpreter, and not a program that one is part of."""
    return bool(sys.executable) and Path(sys.executable).stem.startswith(("python", "pypy"))


_READERS: dict[str, type[StepsReader] | type[SystemReader]] = {"steps": StepsReader, "system": SystemReader}


@dataclass(frozen=True)
class RunRecords:
    """What the files of a run hold.

    Attributes:
        directory: where they are, for messages.
        processes: of rank 0, in the order of their starts.
        ranks: the steps of each, rank 0 first; none of a rank without a file.
        system: what each sampled, likewise.
        others: by rank, the processes of ranks other than 0.
        unreadable: name of a file to how many of its lines hold something else and were skipped.
    """

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
    """Reads the files of a run, and at every further look only what they have grown by.

    A run that is started anew in the same folder is read from its own start.
    """

    def __init__(self, directory: Path) -> None:
        """Nothing is read yet.

        Args:
            directory: the ``efficiency`` folder of a run; it need not be there yet.
        """
        self._directory = directory
        self._spans: dict[int, SpanTail] = {}
        self._readers: dict[Path, Reader] = {}

    def look(self) -> RunRecords:
        """The records as they are now; they are only good until the next look.

        Raises:
            OutputError: a file cannot be read, or was written by a newer version.
        """
        ranks = sorted({0, *rank_files(self._directory, "spans")})
        lived = {rank: self._processes(rank) for rank in ranks}
        files = [(path, kind, rank) for kind in _READERS for rank, path in rank_files(self._directory, kind).items()]
        readers = [self._readers.get(path) or _READERS[kind](path, rank) for path, kind, rank in files]
        self._readers, faults = {}, []
        for (path, kind, rank), looked in zip(files, look_at_all(readers), strict=True):
            found = look_at(_READERS[kind](path, rank)) if isinstance(looked, Replaced) else looked
            if isinstance(found, OutputError):
                faults.append(found)  # it is read from its start the next time
            elif not isinstance(found, Replaced):
                self._readers[path] = found
        if faults:
            raise faults[0]
        found_readers = self._readers.values()
        skipped = {self._spans[rank].path.name: self._spans[rank].skipped for rank in ranks if lived[rank]}
        skipped.update((reader.tail.path.name, reader.sums.skipped) for reader in found_readers)
        return RunRecords(
            self._directory,
            lived.pop(0),
            [reader.sums for reader in found_readers if isinstance(reader, StepsReader)],
            [reader.sums for reader in found_readers if isinstance(reader, SystemReader)],
            {name: count for name, count in skipped.items() if count},
            lived,
        )

    def _processes(self, rank: int) -> list[ProcessSpans]:
        path = records_path(self._directory, "spans", rank)
        tail = self._spans.setdefault(rank, SpanTail(path))
        for _ in range(2):
            if not path.exists():
                break
            try:
                tail.look()
            except Replaced:
                tail = self._spans[rank] = SpanTail(path)
            except OutputError:
                self._spans[rank] = SpanTail(path)
                raise
            else:
                return tail.processes
        self._spans[rank] = SpanTail(path)
        return []


def read_records(directory: Path) -> RunRecords:
    """The records of a run as they are now.

    Args:
        directory: the ``efficiency`` folder of the run.

    Raises:
        OutputError: a file cannot be read, or was written by a newer version.
    """
    return RunReader(directory).look()


def read_system(directory: Path) -> list[RankSystem]:
    """What the ranks of a run have sampled so far.

    Args:
        directory: the ``efficiency`` folder of the run.

    Raises:
        OutputError: a file cannot be read, or was written by a newer version.
    """
    found = []
    for looked in look_at_all([SystemReader(path, rank) for rank, path in rank_files(directory, "system").items()]):
        if isinstance(looked, OutputError):
            raise looked
        if isinstance(looked, SystemReader):
            found.append(looked.sums)
    return found
