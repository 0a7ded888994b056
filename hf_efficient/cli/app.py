"""``hf-efficient``: the table of commands and the way in.

To add a command: write ``cli/NAME.py`` with one function (its parameters are typer's, its docstring is the
help and shows an example), and a line in ``COMMANDS``. Import what it needs inside the function, so that
``--help`` stays instant. Raise ``HfEfficientError`` for what the user can mend and ``typer.Exit(1)`` where
the answer is no.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hf_efficient.cli.errors import run_guarded
from hf_efficient.cli.lazy import LazyCommand, lazy_group
from hf_efficient.cli.messages import messages_on_stderr
from hf_efficient.version import __version__

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, LazyCommand] = {
    "train": LazyCommand("hf_efficient.cli.train", "train", "Fine-tune as a recipe says."),
    "plan": LazyCommand("hf_efficient.cli.plan", "plan", "Predict memory, time and cost of a recipe, without a GPU."),
    "report": LazyCommand("hf_efficient.cli.report", "report", "Show where a run's time, tokens and memory went."),
    "diagnose": LazyCommand("hf_efficient.cli.diagnose", "diagnose", "Tell what slows a run down, and what to change."),
    "merge": LazyCommand("hf_efficient.cli.merge", "merge", "Merge a trained adapter into its model."),
    "recipes": LazyCommand("hf_efficient.cli.recipes", "recipes", "List the shipped recipes; show one resolved."),
    "validate": LazyCommand("hf_efficient.cli.validate", "validate", "Check a recipe and tell all its problems."),
    "schema": LazyCommand("hf_efficient.cli.schema", "schema", "Print the JSON Schema of a recipe file."),
    "check-node": LazyCommand(
        "hf_efficient.cli.check_node", "check_node", "Check a machine of a cluster's job before it trains."
    ),
    "env": LazyCommand("hf_efficient.cli.env", "env", "Print versions and hardware, for a bug report."),
}

_app = typer.Typer(cls=lazy_group(COMMANDS), add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@_app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Anywhere: show the traceback of an error.")] = False,
) -> None:
    """Fine-tuning with Hugging Face that is predictable, explained and cheap.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``hf-efficient`` with ``argv`` (default: the process's) and exit.

    Raises:
        SystemExit: always; ``cli/errors.py`` lists the codes.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in given
    args = [arg for arg in given if arg != "--debug"] or ["--help"]
    with messages_on_stderr():
        raise SystemExit(run_guarded(lambda: _run(args, debug), debug=debug))


def _run(args: list[str], debug: bool) -> None:
    typer.main.get_command(_app).main(args, prog_name="hf-efficient", obj=debug)
