"""What a run leaves beside its records when it ends: its account, its diagnosis, and its page."""

from __future__ import annotations

import logging
from pathlib import Path

from hf_efficient.account.files import RUN_JSON, write_account
from hf_efficient.account.run_records import RunReader
from hf_efficient.errors import OutputError
from hf_efficient.measure.run_page import RunPage
from hf_efficient.measure.stream import FaultLatch

__all__ = ["RunResults"]

logger = logging.getLogger(__name__)


class RunResults:
    """Writes ``run.json``, ``diagnosis.json`` and ``report.html``, again where a run goes on."""

    def __init__(self) -> None:
        self._page = RunPage()
        self._reader: RunReader | None = None

    def write(self, directory: Path, latch: FaultLatch, *, page: bool) -> None:
        """Write them from the records as they are.

        Args:
            directory: of the run.
            latch: told where the account cannot be written; then there is no page either.
            page: whether to write the diagnosis and the page too, which take longer.
        """
        try:
            self._reader = write_account(directory, self._reader)
        except (OSError, OutputError) as fault:
            latch.tell(directory / RUN_JSON, fault)
        else:
            if page:
                self._diagnose(directory)
                self._page.write(directory, self._reader)

    def _diagnose(self, directory: Path) -> None:
        try:
            from hf_efficient.diagnose.run import write_diagnosis

            write_diagnosis(directory, self._reader)
        except Exception:
            logger.warning("The run could not be diagnosed, because of a fault; it is not affected.", exc_info=True)

    def forget(self) -> None:
        """Another run follows."""
        self._reader = None
