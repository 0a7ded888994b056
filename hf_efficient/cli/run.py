"""``hf-efficient run``: a training script of the user's own, unchanged, with account, page and diagnosis."""

from __future__ import annotations

import atexit
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_efficient.launch.script import Instrumented

run = typer.Typer(add_completion=False, rich_markup_mode="rich")


@run.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def _run(
    target: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python file; with -m a module.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in `python -m`.")] = False,
) -> None:
    """Run a training script as `python SCRIPT ARGS` does, and show where its time, memory and money went.

    Each Trainer of transformers or TRL in it writes its account and page to OUTPUT_DIR/efficiency. The script stays as
    it is; its exit code is that of this command. What this command adds is printed on standard error, at the end.

    On several GPUs: torchrun --no-python --nproc-per-node 8 hf-efficient run train.py ARGS

    Example: hf-efficient run train.py --learning_rate 1e-4
    """
    from hf_efficient.launch.script import Instrumented, check_target, run_script

    check_target(target, module=module)
    instrumented = Instrumented()
    atexit.register(_show, instrumented, target)  # before the account's own, and so called after it
    instrumented.begin()
    run_script(target, arguments or [], module=module)


def _show(instrumented: Instrumented, target: str) -> None:
    if not instrumented.trainers:
        print(f"{target} built no Trainer of transformers or TRL: nothing was recorded.", file=sys.stderr)
    if not instrumented.finished:
        return
    from hf_efficient.reporting.finish_run import REPORT_HTML
    from hf_efficient.reporting.run_end import headline, short_findings
    from hf_efficient.reporting.terminal import show

    for directory, run in instrumented.finished.items():
        found = [] if run.diagnosis is None else short_findings(run.diagnosis)
        show(["", *headline(run.account), *found], file=sys.stderr)
        if (directory / REPORT_HTML).is_file():
            print(f"The page is {directory / REPORT_HTML}", file=sys.stderr)
        name = shlex.quote(str(directory))
        print(f"More: hf-efficient report {name}; hf-efficient diagnose {name}", file=sys.stderr)
