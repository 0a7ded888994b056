"""What a run leaves beside its records when it ends: its account, its diagnosis, and its page."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.account.files import RUN_JSON, write_account
from hf_efficient.account.run_records import RunReader
from hf_efficient.errors import OutputError
from hf_efficient.measure.run_diagnosis import RunDiagnosis
from hf_efficient.measure.run_page import RunPage
from hf_efficient.measure.stream import FaultLatch

__all__ = ["RunResults"]


class RunResults:
    """Writes ``run.json``, ``diagnosis.json`` and ``report.html``, again where a run goes on."""

    def __init__(self) -> None:
        self._page = RunPage()
        self._diagnosis = RunDiagnosis()
        self._reader: RunReader | None = None

    def write(self, directory: Path, latch: FaultLatch, *, page: bool, tell: bool) -> None:
        """Write them from the records as they are.

        Args:
            directory: of the run.
            latch: told where the account cannot be written; then there is no page either.
            page: whether to write the diagnosis and the page too, which take longer.
            tell: log the first finding.
        """
        try:
            self._reader = write_account(directory, self._reader)
        except (OSError, OutputError) as fault:
            latch.tell(directory / RUN_JSON, fault)
        else:
            if page:
                self._diagnosis.write(directory, self._reader, tell=tell)
                self._page.write(directory, self._reader)

    def forget(self) -> None:
        """Another run follows."""
        self._reader = None
