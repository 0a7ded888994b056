"""``hf-efficient compare``: runs against a first one, with their noise, and a gate for regressions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import MARKDOWN, PAGE, check_file, command_line, print_record, write_page, write_text
from hf_efficient.errors import OutputError, SetupError

if TYPE_CHECKING:
    from hf_efficient.reporting.run_data import RunData

_MOST_SIDES = 26


def compare(
    run_dirs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_DIR", help="Output directories; the others against the first. RUN,RUN: repeats of one recipe."
        ),
    ],
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIGURE=PERCENT",
            help="Exit code 1 where a figure is worse than the first run's by more, beyond the noise; repeatable.",
        ),
    ] = None,
    eval_tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", help="Exit code 1 where the evaluation loss at equal tokens is higher by more."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    to_markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write a table for a pull request; - prints it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare runs with a first one: what changed, and each figure's difference beside its noise.

    Steps are compared in pairs where both runs have the same batches. Exit code 1: a regression beyond a threshold.

    Example: hf-efficient compare outputs/before outputs/after --threshold tokens_per_second=3
    """
    from hf_efficient.accounting.comparison import compare_runs, with_regressions
    from hf_efficient.reporting.comparison import comparison_renderables, markdown
    from hf_efficient.reporting.terminal import show

    if not 2 <= len(run_dirs) <= _MOST_SIDES:
        what = "one run is no comparison" if len(run_dirs) < 2 else f"{len(run_dirs)} runs are too many"
        raise SetupError(f"RUN_DIR: {what}. Name 2 to {_MOST_SIDES} output directories.")
    allowed = _allowed(threshold or [], eval_tolerance)
    prints_markdown = str(to_markdown) == "-"
    if prints_markdown and as_json:
        raise SetupError("--markdown: - and --json both print. Write --markdown FILE.")
    if html is not None:
        check_file("--html", html, PAGE)
    if to_markdown is not None and not prints_markdown:
        check_file("--markdown", to_markdown, MARKDOWN)
    sides = [_read(given) for given in run_dirs]
    found = with_regressions(compare_runs(sides), allowed)
    firsts = [side[0] for side in sides]
    accounts = [run.account for run in firsts]
    if to_markdown is not None:
        text = markdown(found, accounts, command_line())
        if prints_markdown:
            print(text, end="")
        else:
            write_text("--markdown", to_markdown, f"{MARKDOWN}\n{text}", MARKDOWN)
    if as_json:
        print_record(found)
    elif not prints_markdown:
        show(comparison_renderables(found, accounts))
    if html is not None:
        from hf_efficient.reporting.html.compare_page import compare_page

        now = datetime.now().astimezone()
        write_page(html, html, lambda: compare_page(found, firsts, now, command_line()), stream=sys.stderr)
    if found.regressions:
        raise typer.Exit(1)


def _read(given: str) -> list[RunData]:
    """The runs of one side."""
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
