"""``hf-efficient report``: the account of a run and its page, after its end and while it trains; ``checkpoints``;
``compare``: runs against a first one, with their noise, and a gate for regressions."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text
from typer import Argument, Option

from hf_efficient.cli import output as shared
from hf_efficient.errors import OutputError, SetupError
from hf_efficient.reporting.terminal import Console, show

if TYPE_CHECKING:
    from hf_efficient.accounting.live import RunView
    from hf_efficient.reporting.run_data import RunData

_REFRESH_SECONDS = 1.0
_MOST_FAILURES = 5
_MOST_SIDES = 26
_LONGEST_SHARE = 0.2
"""Of the time, that may go into reading: a very long run is looked at less often."""


def report(
    run_dir: shared.RunDir,
    html: Annotated[
        Path | None,
        Option(
            metavar="FILE", help="Where the page goes; default: report.html beside the records, nowhere with --json."
        ),
    ] = None,
    no_html: Annotated[bool, Option("--no-html", help="Print only.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the account as JSON, as run.json holds it.")] = False,
    live: Annotated[bool, Option("--watch", help="Show the run while it trains; Ctrl-C ends it.")] = False,
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
    from hf_efficient.accounting.account import load_run
    from hf_efficient.reporting.finish_run import REPORT_HTML
    from hf_efficient.reporting.html.run_page import run_page
    from hf_efficient.reporting.run_data import read_run
    from hf_efficient.run_dir.json_file import strict_json
    from hf_efficient.run_dir.paths import records_folder

    if as_json:
        shared.print_json(strict_json(load_run(run_dir)))
    directory = records_folder(run_dir)
    has_page = html is not None or not (as_json or no_html)
    if as_json and not has_page:
        return
    run = read_run(directory, trace=has_page)
    if not as_json:
        _print_run(run, run_dir)
    if has_page:
        shared.write_page(html, directory / REPORT_HTML, lambda: run_page(run), sys.stderr if as_json else None)


def _print_run(run: RunData, run_dir: Path) -> None:
    from hf_efficient.reporting.console import account_renderables, damage_lines
    from hf_efficient.reporting.diagnosis import diagnosis_hint
    from hf_efficient.reporting.trained_model import scores_renderables

    show(account_renderables(run.account))
    if run.task_scores is not None:
        show(scores_renderables(run.task_scores))
    show(damage_lines(run_dir.expanduser()))
    show(diagnosis_hint(run.diagnosis, run.directory))


def watch(run_dir: Path) -> None:
    """Show the run until it ends, is gone for good, or the user stops it (Ctrl-C). A run without records is waited for,
    and so is its folder where its parent is there. Without a terminal, only the last look is printed. Raises
    ``OutputError``: there is neither such a folder nor its parent, or its records cannot be read."""
    from rich.live import Live

    console = Console(highlight=False)
    looks = _looks(run_dir)
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                began = time.monotonic()
                view = next(looks)
                live.update(_screen(view, run_dir), refresh=console.is_terminal)
                if view is not None and view.state in ("ended", "gone"):
                    return
                time.sleep(max(_REFRESH_SECONDS, (time.monotonic() - began) / _LONGEST_SHARE))
        except KeyboardInterrupt:
            return


def _looks(run_dir: Path) -> Iterator[RunView | None]:
    """A run as it is each time, None before its first records. How long ago the last heartbeat came is measured by this
    process's clock alone, once it has seen one come."""
    from hf_efficient.accounting.account import account_run
    from hf_efficient.accounting.live import view_of
    from hf_efficient.accounting.run_records import RunReader
    from hf_efficient.run_dir import paths

    seen: RunView | None = None
    directory, reader = run_dir, RunReader(run_dir)
    written, silent_since, failed = 0.0, 0.0, 0
    while True:
        latest = None if _is_to_come(run_dir) else paths.records_folder(run_dir, latest=True)
        last = 0.0 if latest is None else _last_written(latest)
        if latest is not None and last:
            if latest != directory:
                directory, reader = latest, RunReader(latest)
            if last != written:
                silent_since = time.monotonic() - (0.0 if written else max(0.0, time.time() - last))
                written = last
            silent = time.monotonic() - silent_since
            try:
                seen, failed = view_of(account_run(directory, reader), silent), 0
            except OutputError:  # a line may be written over while it is read
                failed += 1
                if failed > _MOST_FAILURES or seen is None:
                    raise
        yield seen


def _last_written(directory: Path) -> float:
    """0 without records: a start that is ready moves them to the run's."""
    from hf_efficient.run_dir.paths import rank_files

    try:
        files = [path.stat() for kind in ("spans", "steps") for path in rank_files(directory, kind).values()]
    except FileNotFoundError:
        return 0.0
    return max((file.st_mtime for file in files), default=0.0) if any(file.st_size for file in files) else 0.0


def _screen(view: RunView | None, run_dir: Path) -> RenderableType:
    from hf_efficient.reporting.console import live_screen

    if view is not None:
        return live_screen(view, run_dir)
    what = f"the folder {run_dir} of a run" if _is_to_come(run_dir) else f"the first records in {run_dir}"
    return Text(f"waiting for {what}; Ctrl-C ends it", "dim")


def _is_to_come(run_dir: Path) -> bool:
    path = run_dir.expanduser()
    return not path.exists() and path.parent.is_dir()


def checkpoints(
    run_dir: shared.RunDir,
    verify: Annotated[
        bool, Option("--verify", help="Read every file and compare its hash; otherwise names and sizes alone.")
    ] = False,
    as_json: Annotated[bool, Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the checkpoints of a run: step, loss, size, whether they are whole, and what is damaged.

    Exit code 1: one of them is not whole.

    Example: hf-efficient checkpoints outputs/quickstart-qlora --verify
    """
    from hf_efficient.reporting.console import checkpoint_table
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
        shared.print_json([state.to_dict() for state in states])
    else:
        show(checkpoint_table(states, hashes=verify))
    if any(state.fault for state in states):
        raise typer.Exit(1)


def compare(
    run_dirs: Annotated[
        list[str],
        Argument(
            metavar="RUN_DIR", help="Output directories; the others against the first. RUN,RUN: repeats of one recipe."
        ),
    ],
    threshold: Annotated[
        list[str] | None,
        Option(
            metavar="FIGURE=PERCENT",
            help="Exit code 1 where a figure is worse than the first run's by more, beyond the noise; repeatable.",
        ),
    ] = None,
    eval_tolerance: Annotated[
        float | None,
        Option(metavar="PERCENT", help="Exit code 1 where the evaluation loss at equal tokens is higher by more."),
    ] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page with plots.")] = None,
    to_markdown: Annotated[
        Path | None, Option("--markdown", metavar="FILE", help="Write a table for a pull request; - prints it.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare runs with a first one: what changed, and each figure's difference beside its noise.

    Steps are compared in pairs where both runs have the same batches. Exit code 1: a regression beyond a threshold.

    Example: hf-efficient compare outputs/before outputs/after --threshold tokens_per_second=3
    """
    from hf_efficient.accounting.comparison import compare_runs, with_regressions
    from hf_efficient.reporting.comparison import comparison_renderables, markdown

    if not 2 <= len(run_dirs) <= _MOST_SIDES:
        what = "one run is no comparison" if len(run_dirs) < 2 else f"{len(run_dirs)} runs are too many"
        raise SetupError(f"RUN_DIR: {what}. Name 2 to {_MOST_SIDES} output directories.")
    allowed = _allowed(threshold or [], eval_tolerance)
    prints_markdown = str(to_markdown) == "-"
    if prints_markdown and as_json:
        raise SetupError("--markdown: - and --json both print. Write --markdown FILE.")
    shared.check_file("--html", html, shared.PAGE)
    if to_markdown is not None and not prints_markdown:
        shared.check_file("--markdown", to_markdown, shared.MARKDOWN)
    sides = [_read(given) for given in run_dirs]
    found = with_regressions(compare_runs(sides), allowed)
    firsts = [side[0] for side in sides]
    accounts = [run.account for run in firsts]
    if to_markdown is not None:
        text = markdown(found, accounts, shared.command_line())
        if prints_markdown:
            print(text, end="")
        else:
            shared.write_text("--markdown", to_markdown, f"{shared.MARKDOWN}\n{text}", shared.MARKDOWN)
    if not prints_markdown:
        shared.print_found(found, partial(comparison_renderables, accounts=accounts), as_json=as_json)
    if html is not None:
        from hf_efficient.reporting.html.compare_page import compare_page

        shared.write_page(html, html, lambda: compare_page(found, firsts, shared.command_line()), stream=sys.stderr)
    if found.regressions:
        raise typer.Exit(1)


def _read(given: str) -> list[RunData]:
    from hf_efficient.reporting.run_data import read_run
    from hf_efficient.run_dir.paths import records_folder

    names = [given] if Path(given).expanduser().exists() else [name for name in given.split(",") if name]
    if not names:
        raise OutputError(f"{given!r}: no such folder; name the OUTPUT_DIR of a run")
    return [read_run(records_folder(name)) for name in names]


def _allowed(thresholds: Sequence[str], eval_tolerance: float | None) -> dict[str, float]:
    """Shares by figure."""
    found = {}
    for one in thresholds:
        name, is_given, percent = one.partition("=")
        try:
            found[name] = float(percent.removesuffix("%")) / 100 if is_given else -1.0
        except ValueError:
            found[name] = -1.0
        if not found[name] >= 0:
            raise SetupError(f"--threshold: {one} is no figure with a percentage. Write tokens_per_second=3.")
    if eval_tolerance is not None:
        if not eval_tolerance >= 0:
            raise SetupError(f"--eval-tolerance: {eval_tolerance} is below 0. Write a percentage, such as 1.")
        found["evaluation_loss_at_equal_tokens"] = eval_tolerance / 100
    return found
