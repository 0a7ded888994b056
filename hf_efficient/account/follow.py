"""The account of a run that goes on: each look reads only what its records have grown by."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from hf_efficient.account.build import build_account
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.reading import rank_files, records_path
from hf_efficient.account.series import build_series
from hf_efficient.account.span_tail import SpanTail
from hf_efficient.account.steps import RankSteps, StepsReader
from hf_efficient.account.system_buckets import SystemReader
from hf_efficient.account.tail import Replaced
from hf_efficient.errors import OutputError
from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries

__all__ = ["RunFollower"]


class _Reader(Protocol):
    def look(self) -> None:
        """Take in what came since the last look."""


_R = TypeVar("_R", bound=_Reader)


class RunFollower:
    """Gives at every look what ``account_of`` and ``series_of`` would.

    A run that is started anew in the same folder is followed from its own start.
    """

    def __init__(self, directory: Path) -> None:
        """Nothing is read yet.

        Args:
            directory: the ``efficiency`` folder of a run; it need not be there yet.
        """
        self._directory = directory
        self._spans: dict[Path, SpanTail] = {}
        self._steps: dict[Path, StepsReader] = {}
        self._system: dict[Path, SystemReader] = {}

    def account(self) -> RunAccount:
        """The account of the records as they are now.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        return build_account(self._processes(), self._ranks(), self._directory)

    def account_and_series(self) -> tuple[RunAccount, RunSeries]:
        """Both, of the same records.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        processes, ranks = self._processes(), self._ranks()
        account = build_account(processes, ranks, self._directory)
        system = _look(self._system, records_path(self._directory, "system", 0), SystemReader)
        readings = system.readings.buckets if system is not None else []
        return account, build_series(account, processes, ranks, readings)

    def _processes(self) -> list[ProcessSpans]:
        spans = _look(self._spans, records_path(self._directory, "spans", 0), SpanTail)
        return [] if spans is None else spans.processes

    def _ranks(self) -> list[RankSteps]:
        files = rank_files(self._directory, "steps")
        for gone in set(self._steps).difference(files.values()):
            del self._steps[gone]
        found = [_look(self._steps, path, partial(StepsReader, rank=rank)) for rank, path in files.items()]
        return [steps.sums for steps in found if steps is not None]


def _look(readers: dict[Path, _R], path: Path, make: Callable[[Path], _R]) -> _R | None:
    """The reader of this file, which has seen what is in it now; a new one where the file is another one now."""
    for _ in range(2):
        if not path.exists():
            readers.pop(path, None)
            return None
        reader = readers.setdefault(path, make(path))
        try:
            reader.look()
        except Replaced:
            del readers[path]
        except OutputError:
            del readers[path]  # half-way: the next look starts again
            raise
        else:
            return reader
    return None
