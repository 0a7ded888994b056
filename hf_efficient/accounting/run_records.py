"""All records of a run, added up in one pass: at once, or while they grow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.accounting.processes import ProcessSpans, SpansReader
from hf_efficient.accounting.steps import RankSteps
from hf_efficient.accounting.system import RankSystem
from hf_efficient.run_dir.jsonl import Replaced, Tail
from hf_efficient.run_dir.paths import rank_files, records_path

_Sums = RankSteps | RankSystem
_SUMS: dict[str, type[_Sums]] = {"steps": RankSteps, "system": RankSystem}


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
    """Reads the files of a run, then only what they have grown by, or all of a new run. The folder may come later.
    ``kinds``: beside the spans."""

    def __init__(self, directory: Path, kinds: Sequence[str] = tuple(_SUMS)) -> None:
        self._directory, self._kinds = directory, kinds
        self._spans: dict[int, SpansReader] = {}
        self._files: dict[Path, tuple[Tail, _Sums]] = {}

    def look(self) -> RunRecords:
        """The records as they are now; they are only good until the next look. Raises ``OutputError``: a file cannot be
        read, or was written by a newer version."""
        ranks = sorted({0, *rank_files(self._directory, "spans")})
        for rank in ranks:
            self._spans.setdefault(rank, SpansReader(records_path(self._directory, "spans", rank)))
        lived = {rank: self._spans[rank].look() for rank in ranks}
        skipped = {self._spans[rank].path.name: self._spans[rank].skipped for rank in ranks}
        found = []
        for kind in self._kinds:
            for rank, path in rank_files(self._directory, kind).items():
                found.append(self._look_at(path, kind, rank))
                skipped[path.name] = found[-1].skipped
        return RunRecords(
            self._directory,
            lived.pop(0),
            [one for one in found if isinstance(one, RankSteps)],
            [one for one in found if isinstance(one, RankSystem)],
            {name: count for name, count in skipped.items() if count},
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
