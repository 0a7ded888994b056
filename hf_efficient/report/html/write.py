"""Writing a page: whole or not at all."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from hf_efficient.account.json_file import write_whole
from hf_efficient.account.run_records import RunReader
from hf_efficient.report.html.page import run_page
from hf_efficient.report.run_data import read_run

__all__ = ["REPORT_HTML", "write_page", "write_report"]

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
