"""The account of a run that goes on: each look reads only what its records have grown by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.account.build import build_account
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.run_records import RunReader, RunRecords
from hf_efficient.account.series import build_series
from hf_efficient.records import RunAccount
from hf_efficient.records.series import RunSeries

__all__ = ["RunFollower"]


class RunFollower:
    """Gives at every look what ``account_of`` and ``series_of`` would.

    Attributes:
        processes: of rank 0, as the last look saw them.
    """

    def __init__(self, directory: Path) -> None:
        """Nothing is read yet.

        Args:
            directory: the ``efficiency`` folder of a run; it need not be there yet.
        """
        self.processes: Sequence[ProcessSpans] = []
        self._reader = RunReader(directory)

    def account(self) -> RunAccount:
        """The account of the records as they are now.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        return build_account(self._look())

    def account_and_series(self) -> tuple[RunAccount, RunSeries]:
        """Both, of the same records.

        Raises:
            OutputError: there are no records yet, or they cannot be read.
        """
        records = self._look()
        account = build_account(records)
        return account, build_series(account, records)

    def _look(self) -> RunRecords:
        records = self._reader.look()
        self.processes = records.processes
        return records
