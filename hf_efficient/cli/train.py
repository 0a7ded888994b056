"""``hf-efficient train``: derive the accelerate command from the recipe, show it, run it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import psutil

    from hf_efficient.launch.nsight import NsightTool

__all__ = ["train"]


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    nsys: Annotated[bool, typer.Option("--nsys", help="Run under Nsight Systems: some steps, on a timeline.")] = False,
    ncu: Annotated[bool, typer.Option("--ncu", help="Run under Nsight Compute: one step's kernels.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the libraries' messages.")] = False,
) -> None:
    """Fine-tune as a recipe says.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4
    """
    from hf_efficient.hardware.devices import accelerator_count, thread_count
    from hf_efficient.launch.command import accelerate_command, printable
    from hf_efficient.launch.flags import parse_flags
    from hf_efficient.launch.nsight import check_installed, nsight_command, nsight_overrides
    from hf_efficient.launch.output import plan_output
    from hf_efficient.launch.strategy import check_launchable
    from hf_efficient.recipe.load import load_recipe

    switches = [name for name, on in (("--resume", resume), ("--overwrite", overwrite), ("--debug", debug)) if on]
    tail = [*(overrides or []), *switches]
    flags = parse_flags([recipe, *tail])
    resolved = load_recipe(flags.recipe, flags.overrides)
    tool = _nsight_tool(nsys, ncu)
    if tool is not None:
        tail = [*tail, *nsight_overrides(resolved)]
        resolved = load_recipe(flags.recipe, parse_flags([recipe, *tail]).overrides)
    check_launchable(resolved)
    automatic = resolved.distributed.processes == "auto"
    command = accelerate_command(
        resolved, recipe, tail, device_count=accelerator_count() if automatic else 0, cores=thread_count()
    )
    if tool is not None:
        command = [*nsight_command(tool, resolved, has_gpu=accelerator_count() > 0), *command]
    print(f"$ {printable(command)}", flush=True)
    if dry_run:
        return
    if tool is not None:
        check_installed(tool)
    plan_output(resolved)  # refuses in a moment what the run would refuse after its imports
    raise SystemExit(run_command(command, resolved.output_dir))


def _nsight_tool(nsys: bool, ncu: bool) -> NsightTool | None:
    """Which of the two was asked for.

    Raises:
        SetupError: both.
    """
    from hf_efficient.errors import SetupError

    if nsys and ncu:
        raise SetupError("--ncu: --nsys is given too, and a process has one profiler; leave one of them out")
    return "nsys" if nsys else "ncu" if ncu else None


def run_command(command: list[str], output_dir: str) -> int:
    """Run the launch and return the exit code that the run itself left; say so where it left none.

    Signals go to the training processes, which end by themselves and say how to go on; the launcher, which would print
    a traceback, sees only that they ended.
    """
    from hf_efficient.launch.flags import STATUS_FILE

    with tempfile.TemporaryDirectory() as folder:
        status = Path(folder) / "status"
        # A group of its own: the terminal's Ctrl-C reaches this process alone, which passes it on.
        launcher = subprocess.Popen(command, env={**os.environ, STATUS_FILE: str(status)}, start_new_session=True)
        previous = {
            number: signal.signal(number, lambda received, frame: _pass_on(launcher.pid, received))
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            code = launcher.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if code and status.is_file():
            return int(status.read_text(encoding="ascii"))
    code = code if code >= 0 else 128 - code
    if code:
        print(
            f"error: the training ended without saying why (exit code {code}): it was killed, for want of memory "
            f"perhaps, or crashed outside Python. `hf-efficient report {shlex.quote(output_dir)}` shows what it "
            "recorded; the same command with --resume goes on from its last checkpoint.",
            file=sys.stderr,
        )
    return code


def _pass_on(launcher: int, received: int) -> None:
    """Send a signal to the processes that the launcher started; to itself while there are none yet."""
    import psutil

    number = signal.SIGTERM if received == signal.SIGHUP else received
    try:
        process = _accelerate(psutil.Process(launcher))
        workers = process.children()
        for target in workers or [process]:
            target.send_signal(number if workers else signal.SIGTERM)
    except psutil.NoSuchProcess:
        return


def _accelerate(process: psutil.Process) -> psutil.Process:
    """accelerate's own process: under Nsight the innermost of those whose command line holds its ``launch``."""
    found = [one for one in (process, *process.children(recursive=True)) if "launch" in one.cmdline()]
    return found[-1] if found else process
