"""``hf-efficient checkpoints``: the checkpoints of a run, and which of them are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import print_json
from hf_efficient.errors import OutputError


def checkpoints(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Output directory of a run.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its hash; otherwise names and sizes alone.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the checkpoints of a run: step, loss, size, whether they are whole, and what is damaged.

    Exit code 1: one of them is not whole.

    Example: hf-efficient checkpoints outputs/quickstart-qlora --verify
    """
    from hf_efficient.reporting.checkpoints import checkpoint_table
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
