"""``hf-efficient report``: the account of a run and its page, after its end and while it trains; ``checkpoints``."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import RunDir, print_json, write_page
from hf_efficient.errors import OutputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hf_efficient.accounting.live import RunView
    from hf_efficient.reporting.run_data import RunData

_REFRESH_SECONDS = 1.0
_MOST_FAILURES = 5
_LONGEST_SHARE = 0.2
"""Of the time, that may go into reading: a very long run is looked at less often."""


def report(
    run_dir: RunDir,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the page goes; default: report.html beside the records, nowhere with --json."
        ),
    ] = None,
    no_html: Annotated[bool, typer.Option("--no-html", help="Print only.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON, as run.json holds it.")] = False,
    live: Annotated[bool, typer.Option("--watch", help="Show the run while it trains; Ctrl-C ends it.")] = False,
) -> None:
    """Show where a run's time, tokens, memory, energy and money went; during it, after its end, after a crash.

    Prints the account and writes it as a page with plots, report.html.

    Example: hf-efficient report outputs/quickstart-qlora
    """
    if live:
        if as_json or html is not None:
            raise typer.BadParameter("--watch shows a run in the terminal. Leave out --json and --html.")
        watch(run_dir)
        return
    if html is not None and no_html:
        raise OutputError("--no-html: --html FILE is given too. Leave one of them out.")
    if not as_json:
        _print_account(run_dir, html, page=not no_html)
        return
    from hf_efficient.accounting.account import load_run
    from hf_efficient.reporting.run_data import read_run
    from hf_efficient.run_dir.json_file import strict_json
    from hf_efficient.run_dir.paths import records_folder

    print_json(strict_json(load_run(run_dir)))
    if html is not None:
        run = read_run(records_folder(run_dir), trace=True)
        write_page(html, html, lambda: _page(run), stream=sys.stderr)


def _print_account(run_dir: Path, html: Path | None, *, page: bool) -> None:
    from hf_efficient.reporting.console import account_renderables, damage_lines
    from hf_efficient.reporting.diagnosis import diagnosis_hint
    from hf_efficient.reporting.finish_run import REPORT_HTML
    from hf_efficient.reporting.run_data import read_run
    from hf_efficient.reporting.terminal import drawn, show
    from hf_efficient.reporting.trained_model import scores_lines, scores_table
    from hf_efficient.run_dir.paths import records_folder

    directory = records_folder(run_dir)
    run = read_run(directory, trace=page)
    show(account_renderables(run.account))
    if run.task_scores is not None:
        show([drawn(scores_table(run.task_scores)), *scores_lines(run.task_scores)])
    show(damage_lines(run_dir.expanduser()))
    show(diagnosis_hint(run.diagnosis, run.directory))
    if page:
        write_page(html, directory / REPORT_HTML, lambda: _page(run))


def _page(run: RunData) -> str:
    from hf_efficient.reporting.html.run_page import run_page

    return run_page(run, datetime.now().astimezone())


def watch(run_dir: Path) -> None:
    """Show the run until it ends, is gone for good, or the user stops it (Ctrl-C). A run without records is waited for,
    and so is its folder where its parent is there. Without a terminal, only the last look is printed. Raises
    ``OutputError``: there is neither such a folder nor its parent, or its records cannot be read."""
    from rich.live import Live

    from hf_efficient.reporting.streams import Console

    console = Console(highlight=False)
    looking = _Looking(run_dir)
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                began = time.monotonic()
                view = looking.look()
                live.update(_screen(view, run_dir), refresh=console.is_terminal)
                if view is not None and view.state in ("ended", "gone"):
                    return
                time.sleep(max(_REFRESH_SECONDS, (time.monotonic() - began) / _LONGEST_SHARE))
        except KeyboardInterrupt:
            return


class _Looking:
    """Follows a run, and measures by its own clock how long ago the last heartbeat came."""

    def __init__(self, run_dir: Path) -> None:
        from hf_efficient.accounting.run_records import RunReader

        self._run_dir = run_dir
        self._directory: Path | None = None
        self._reader = RunReader(run_dir)
        self._seen: RunView | None = None
        self._failed = 0
        self._written: float | None = None
        self._silent_since = 0.0

    def look(self) -> RunView | None:
        from hf_efficient.accounting.account import account_run
        from hf_efficient.accounting.live import view_of
        from hf_efficient.accounting.run_records import RunReader
        from hf_efficient.run_dir import paths

        if _is_to_come(self._run_dir):
            return None
        directory = paths.records_folder(self._run_dir, latest=True)
        try:
            files = [path.stat() for kind in ("spans", "steps") for path in paths.rank_files(directory, kind).values()]
        except FileNotFoundError:  # a start that is ready moves its records to the run's
            return self._seen
        if not any(file.st_size for file in files):
            return self._seen
        if directory != self._directory:
            self._directory, self._reader = directory, RunReader(directory)
        silent = self._silent_seconds(max(file.st_mtime for file in files))
        try:
            run = account_run(directory, self._reader)
        except OutputError:  # a line may be written over while it is read
            self._failed += 1
            if self._failed > _MOST_FAILURES or self._seen is None:
                raise
            return self._seen
        self._failed = 0
        self._seen = view_of(run, silent)
        return self._seen

    def _silent_seconds(self, written: float) -> float:
        """From the time of the last writing; of one that is seen to change, by this process's clock alone."""
        if written != self._written:
            age = max(0.0, time.time() - written) if self._written is None else 0.0
            self._written, self._silent_since = written, time.monotonic() - age
        return time.monotonic() - self._silent_since


def _screen(view: RunView | None, run_dir: Path) -> RenderableType:
    from rich.text import Text

    from hf_efficient.reporting.console import live_screen

    if view is not None:
        return live_screen(view, run_dir)
    what = f"the folder {run_dir} of a run" if _is_to_come(run_dir) else f"the first records in {run_dir}"
    return Text(f"waiting for {what}; Ctrl-C ends it", "dim")


def _is_to_come(run_dir: Path) -> bool:
    path = run_dir.expanduser()
    return not path.exists() and path.parent.is_dir()


def checkpoints(
    run_dir: RunDir,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its hash; otherwise names and sizes alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the checkpoints of a run: step, loss, size, whether they are whole, and what is damaged.

    Exit code 1: one of them is not whole.

    Example: hf-efficient checkpoints outputs/quickstart-qlora --verify
    """
    from hf_efficient.reporting.console import checkpoint_table
    from hf_efficient.reporting.terminal import show
    from hf_efficient.run_dir import checkpoints as held

    directory = run_dir.expanduser()
    if directory.name.startswith("checkpoint-") and directory.is_dir():
        found = [directory]
    elif directory.is_dir():
        found = held.checkpoints(directory)
    else:
        raise OutputError(f"{run_dir}: no such folder; name the OUTPUT_DIR of a run")
    if not found:
        raise OutputError(f"{run_dir} holds no checkpoint. Name the OUTPUT_DIR of a run that has saved one.")
    states = [held.state_of(path, hashes=verify) for path in found]
    if as_json:
        print_json([state.to_dict() for state in states])
    else:
        show(checkpoint_table(states, hashes=verify))
    if any(state.fault for state in states):
        raise typer.Exit(1)
