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
    from hf_efficient.account.files import to_json
    from hf_efficient.account.load import load_run

    account = load_run(run_dir)
    if as_json:
        print(to_json(account), end="")
        return
    from rich.console import Console

    from hf_efficient.report.console import account_renderables

    console = Console(highlight=False)
    for part in account_renderables(account):
        console.print(part)
