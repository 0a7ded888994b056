"""``hf-efficient report``: the account of a run, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Output directory of a run, or its efficiency/.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON, as run.json holds it.")] = False,
) -> None:
    """Show where a run's time, tokens, memory, energy and money went; while it runs, when it is over, after a crash.

    Example: hf-efficient report outputs/quickstart-qlora
    """
    from hf_efficient.account.build import account_of
    from hf_efficient.account.files import RUN_JSON, read_account, to_json
    from hf_efficient.account.reading import rank_files
    from hf_efficient.errors import OutputError

    directory = run_dir.expanduser()
    if (directory / "efficiency").is_dir():
        directory = directory / "efficiency"
    if not directory.is_dir():
        raise OutputError(f"{run_dir}: no such folder; name the OUTPUT_DIR of a run")
    if not rank_files(directory, "spans") and not rank_files(directory, "steps") and (directory / RUN_JSON).exists():
        account = read_account(directory / RUN_JSON)  # all that was kept
    else:
        account = account_of(directory)
    if as_json:
        print(to_json(account), end="")
        return
    from rich.console import Console

    from hf_efficient.report.console import account_renderables

    console = Console(highlight=False)
    for part in account_renderables(account):
        console.print(part)
