"""All records of a run, added up in one pass: at once, or while they grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.account.looking import Reader, look_at, look_at_all
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.reading import rank_files, records_path
from hf_efficient.account.span_tail import SpanTail
from hf_efficient.account.steps import RankSteps, StepsReader
from hf_efficient.account.system import RankSystem, SystemReader
from hf_efficient.account.tail import Replaced
from hf_efficient.errors import OutputError

__all__ = ["RunReader", "RunRecords", "read_records", "read_system"]

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
