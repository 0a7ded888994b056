"""``hf-efficient train``: derive the accelerate command from the recipe, show it, run it."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["train"]


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the libraries' messages.")] = False,
) -> None:
    """Fine-tune as a recipe says.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4
    """
    from hf_efficient.hardware.devices import accelerator_count, thread_count
    from hf_efficient.launch.command import accelerate_command, printable
    from hf_efficient.launch.flags import parse_flags
    from hf_efficient.recipe.load import load_recipe

    switches = [name for name, on in (("--resume", resume), ("--overwrite", overwrite), ("--debug", debug)) if on]
    tail = [*(overrides or []), *switches]
    flags = parse_flags([recipe, *tail])
    resolved = load_recipe(flags.recipe, flags.overrides)
    automatic = resolved.distributed.processes == "auto"
    command = accelerate_command(
        resolved, recipe, tail, device_count=accelerator_count() if automatic else 0, cores=thread_count()
    )
    print(f"$ {printable(command)}", flush=True)
    if dry_run:
        return
    raise SystemExit(run_command(command))


def run_command(command: list[str]) -> int:
    """Run the launch and return the exit code that the run itself left.

    An interrupt from the keyboard reaches the run as well, which ends by itself and says how to go on.
    """
    from hf_efficient.launch.flags import STATUS_FILE

    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status"
        process = subprocess.Popen(command, env={**os.environ, STATUS_FILE: str(status)})
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = process.wait()
        finally:
            signal.signal(signal.SIGINT, previous)
        if code and status.is_file():
            return int(status.read_text(encoding="ascii"))
        return code
