"""The page of a run, written when the run ends."""

from __future__ import annotations

import logging
from pathlib import Path

from hf_efficient.account.run_records import RunReader
from hf_efficient.errors import OutputError

__all__ = ["RunPage"]

logger = logging.getLogger(__name__)


class RunPage:
    """Writes ``report.html`` beside the records; never raises, and warns once per run."""

    def __init__(self) -> None:
        self._given_up: Path | None = None

    def write(self, directory: Path, reader: RunReader | None = None) -> None:
        """Write it, or write it again.

        Args:
            directory: the run's folder of records.
            reader: one that has read them before, so that only what is new is read.
        """
        if directory == self._given_up:
            return
        try:
            from hf_efficient.report.html.write import write_report

            write_report(directory, reader=reader)
        except (OSError, OutputError) as error:
            self._given_up = directory
            logger.warning(
                "%s cannot be written (%s). The run is not affected; `hf-efficient report %s --html FILE` makes it.",
                directory / "report.html",
                error,
                directory,
            )
        except Exception:
            self._given_up = directory
            logger.warning("report.html could not be made, because of a fault; the run is not affected.", exc_info=True)
