"""Writing a page: whole or not at all.

The diagnosis of a run, written when the run ends.

The page of a run, written when the run ends.

What a run leaves beside its records when it ends: its account, its diagnosis, and its page.
"""

from __future__ import annotations

import logging
from datetime import datetime
from pathlib import Path

from hf_efficient.accounting.account import RUN_JSON, write_account
from hf_efficient.accounting.run_records import RunReader
from hf_efficient.errors import OutputError
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import read_run
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.run_dir.stream import FaultLatch

REPORT_HTML = "report.html"


def write_report(directory: Path, path: Path | None = None, *, reader: RunReader | None = None) -> Path:
    """Write the report of a run from its records.

    Args:
        directory: the ``efficiency`` folder of the run.
        path: where to; default: ``report.html`` in that folder.
        reader: one that has read them before, so that only what is new is read.

    Returns:
        Where it was written.

    Raises:
        OutputError: there are no records, or they cannot be read.
        OSError: the file cannot be written; one that was there stays as it is.
    """
    page = run_page(read_run(directory, reader, trace=True), datetime.now().astimezone())
    return write_page(path or directory / REPORT_HTML, page)


def write_page(path: Path, page: str) -> Path:
    """Write a page.

    Raises:
        OSError: it cannot be written; a file that was there stays as it is.
    """
    write_whole(path, page)
    return path


logger = logging.getLogger(__name__)


class RunDiagnosis:
    """Writes ``diagnosis.json`` beside the records; never raises, and tells of its first finding once per run."""

    def __init__(self) -> None:
        self._told: Path | None = None

    def write(self, directory: Path, reader: RunReader | None = None, *, tell: bool) -> None:
        """Write it, or write it again.

        Args:
            directory: the run's folder of records.
            reader: one that has read them before, so that only what is new is read.
            tell: log its first finding above ``info``; a recipe's run shows them itself.
        """
        try:
            from hf_efficient.diagnosis.engine import write_diagnosis

            found = write_diagnosis(directory, reader)
        except Exception:
            logger.warning("The run could not be diagnosed, because of a fault; it is not affected.", exc_info=True)
            return
        if not tell or found.is_healthy or directory == self._told:
            return
        self._told = directory
        first = found.findings[0].title
        logger.warning(
            "%s%s. `hf-efficient diagnose %s` tells what to change.", first[:1].upper(), first[1:], directory
        )


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
