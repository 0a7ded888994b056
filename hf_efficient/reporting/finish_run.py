"""The end of a run, once: its account, its diagnosis and its page, made from one reading of its records."""

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hf_efficient.accounting.account import AccountedRun, account_run, write_account
from hf_efficient.accounting.run_records import RunReader
from hf_efficient.diagnosis.engine import DIAGNOSIS_JSON
from hf_efficient.errors import OutputError
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import FEWEST_STEPS, Diagnosis
from hf_efficient.reporting.diagnosis import brief_lines
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import RunData, read_run_trace, run_data
from hf_efficient.run_dir.json_file import strict_json, write_whole

REPORT_HTML = "report.html"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    """What a run came to, written as ``run.json``, ``diagnosis.json`` and ``report.html`` beside its records."""

    account: RunAccount
    diagnosis: Diagnosis | None  # None where it was not asked for, or failed
    reader: RunReader  # has seen all records; of a run that continues it reads only what comes after them
    said: set[str] = field(default_factory=set)  # warnings, each logged once for a run


def finish_run(
    directory: Path, earlier: FinishedRun | None = None, *, page: bool = True, tell: bool = False
) -> FinishedRun:
    """Write what a run came to; again where the run continued, with what the earlier call returned. A fault of the
    diagnosis or of the page is logged, and leaves out only that. ``page=False`` makes the account alone; ``tell`` logs
    the findings, and where the page is. Raises ``OutputError``: there are no records, or they cannot be read;
    ``OSError``: ``run.json`` cannot be written, and an earlier one stays as it is."""
    reader = earlier.reader if earlier is not None else RunReader(directory)
    said = earlier.said if earlier is not None else set()
    run = account_run(directory, reader)
    write_account(directory, run.account)
    diagnosis = _diagnosis_and_page(directory, run, said) if page else None
    if tell and diagnosis is not None and "findings" not in said and _has_news(diagnosis):
        said.add("findings")
        place = directory / REPORT_HTML
        where = [f"The page is {place}"] if place.is_file() else []
        where.append(f"More: hf-efficient diagnose {shlex.quote(str(directory))}")
        logger.warning("\n".join([*brief_lines(diagnosis), *where]))
    return FinishedRun(run.account, diagnosis, reader, said)


def _has_news(diagnosis: Diagnosis) -> bool:
    """Of the first steps all is noise but what is critical."""
    return diagnosis.steps >= FEWEST_STEPS or any(one.severity == "critical" for one in diagnosis.findings)


def _diagnosis_and_page(directory: Path, accounted: AccountedRun, said: set[str]) -> Diagnosis | None:
    run = None
    with _logged("The run could not be diagnosed, because of a fault; it is not affected.", said):
        run = run_data(accounted)
        if run.diagnosis is not None:
            write_whole(directory / DIAGNOSIS_JSON, strict_json(run.diagnosis))
    if run is None:
        return None
    if "page" not in said:
        said.add("page")  # until it is there
        with _logged("report.html could not be made, because of a fault; the run is not affected.", said):
            _write_page(directory, replace(run, trace=read_run_trace(directory)), said)
    return run.diagnosis


def _write_page(directory: Path, run: RunData, said: set[str]) -> None:
    path = directory / REPORT_HTML
    try:
        write_whole(path, run_page(run))
    except (OSError, OutputError) as error:
        words = "%s cannot be written (%s). The run is not affected; `hf-efficient report %s --html FILE` makes it."
        logger.warning(words, path, error, directory)
    else:
        said.discard("page")


@contextmanager
def _logged(words: str, said: set[str]) -> Iterator[None]:
    try:
        yield
    except Exception:
        if words not in said:
            logger.warning(words, exc_info=True)
        said.add(words)
