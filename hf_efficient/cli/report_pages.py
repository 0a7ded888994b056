"""What ``hf-efficient report`` prints and writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console, RenderableType

from hf_efficient.account.files import to_json
from hf_efficient.account.load import load_run, records_folder
from hf_efficient.cli.page_file import write_page_file
from hf_efficient.report.compare_console import comparison_renderables
from hf_efficient.report.console import account_renderables
from hf_efficient.report.diagnosis_console import diagnosis_hint
from hf_efficient.report.run_data import RunData, read_run

__all__ = ["print_account", "print_comparison", "print_json"]

COMPARISON_HTML = "comparison.html"


def print_json(run_dirs: Sequence[Path], html: Path | None) -> None:
    """The account of a run as JSON; of several runs as a list.

    Args:
        run_dirs: output directories of runs, or their ``efficiency`` folders.
        html: where their page goes; None: it is not written.

    Raises:
        OutputError: there are no records, they cannot be read, or ``html`` cannot be written.
    """
    texts = [to_json(load_run(directory)) for directory in run_dirs]
    print(texts[0] if len(texts) == 1 else f"[\n{','.join(texts)}]\n", end="")
    if html is not None:
        runs = [read_run(records_folder(directory), trace=len(run_dirs) == 1) for directory in run_dirs]
        write_page_file(html, html, lambda: _page(runs), told_to=sys.stderr)


def print_account(run_dir: Path, html: Path | None, *, page: bool) -> None:
    """Print the account of a run, and write its page.

    Args:
        run_dir: output directory of the run, or its ``efficiency`` folder.
        html: where the page goes; None: beside the records, or nowhere where that cannot be written.
        page: False to print only.

    Raises:
        OutputError: there are no records, they cannot be read, or ``html`` cannot be written.
    """
    from hf_efficient.report.html.write import REPORT_HTML

    directory = records_folder(run_dir)
    run = read_run(directory, trace=page)
    _print([*account_renderables(run.account), *diagnosis_hint(run.diagnosis, run.directory)])
    if page:
        write_page_file(html, directory / REPORT_HTML, lambda: _page([run]))


def print_comparison(run_dirs: Sequence[Path], html: Path | None, *, page: bool) -> None:
    """Print several runs beside each other, and write them as a page.

    Args:
        run_dirs: the first one is what the others are compared with.
        html: where the page goes; None: ``comparison.html`` in the current directory.
        page: False to print only.

    Raises:
        OutputError: a run has no records, they cannot be read, or ``html`` cannot be written.
    """
    runs = [read_run(records_folder(directory)) for directory in run_dirs]
    _print(comparison_renderables(runs))
    if page:
        write_page_file(html, Path(COMPARISON_HTML), lambda: _page(runs))


def _print(parts: Sequence[RenderableType]) -> None:
    console = Console(highlight=False)
    for part in parts:
        console.print(part)


def _page(runs: Sequence[RunData]) -> str:
    from hf_efficient.report.html.compare_page import compare_page
    from hf_efficient.report.html.page import run_page

    now = datetime.now().astimezone()
    return run_page(runs[0], now) if len(runs) == 1 else compare_page(runs, now)
