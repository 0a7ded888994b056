"""How a command ends: the one place that turns exceptions into messages and exit codes.

0    done
1    the command ran and the answer is no; or a defect of ours
2    bad input: the recipe, the data, the flags, this machine
130  interrupted from the keyboard

What the package itself logs while a command runs, on standard error.

A group of commands whose modules are imported when a command is used, not to list them.

``hf-efficient``: the table of commands and the way in.

To add a command: write ``cli/NAME.py`` with one function (its parameters are typer's, its docstring is the
help and shows an example), and a line in ``COMMANDS``. Import what it needs inside the function, so that
``--help`` stays instant. Raise ``HfEfficientError`` for what the user can mend and ``typer.Exit(1)`` where
the answer is no.
"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hf_efficient.errors import HfEfficientError
from hf_efficient.version import __version__

INTERRUPTED = 130


def run_guarded(action: Callable[[], object], *, debug: bool) -> int:
    """Run a command and tell how it went.

    Args:
        action: the command. ``SystemExit`` passes through.
        debug: show tracebacks.

    Returns:
        The exit code.
    """
    try:
        action()
    except KeyboardInterrupt:
        return INTERRUPTED
    except HfEfficientError as error:
        if debug:
            traceback.print_exc()
        for line in str(error).splitlines() or [type(error).__name__]:
            print(f"error: {line}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last resort: everything else is a defect
        _tell_defect(error, debug)
        return 1
    return 0


def _tell_defect(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exc()
        return
    told = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = "Run it again with --debug for the traceback, and report it with the output of `hf-efficient env`."
    print(f"error: this is a defect of hf_efficient: {told}. {remedy}", file=sys.stderr)


class _ToStderr(logging.Handler):
    """Writes to what standard error is when the message comes."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """Print the package's messages from INFO upwards during the block; the libraries' are not touched."""
    logger = logging.getLogger("hf_efficient")
    handler, level = _ToStderr(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


@dataclass(frozen=True)
class LazyCommand:
    """One command of the table.

    Attributes:
        module: where it lives.
        attribute: a function that typer can wrap, or a ``typer.Typer`` with commands of its own.
        help: the line in the list.
    """

    module: str
    attribute: str
    help: str


def lazy_group(commands: dict[str, LazyCommand]) -> type[TyperGroup]:
    """A class for ``typer.Typer(cls=...)`` that offers the commands of a table."""

    class LazyGroup(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            return _load(cmd_name, commands[cmd_name]) if cmd_name in commands else None

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, command.help) for name, command in commands.items()])

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args[0] not in commands and not args[0].startswith("-"):
                ctx.fail(_unknown(args[0], list(commands)))
            name, command, rest = super().resolve_command(ctx, args)
            # --debug may stand anywhere; a command that passes it on gets it back.
            if command is not None and ctx.obj and any(param.name == "debug" for param in command.params):
                rest = ["--debug", *rest]
            return name, command, rest

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:
                # Here, because the layer above prints "Aborted!" before it exits.
                raise SystemExit(INTERRUPTED) from None

    return LazyGroup


def _load(name: str, command: LazyCommand) -> Any:
    found = getattr(importlib.import_module(command.module), command.attribute)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(found)
    return typer.main.get_command(app)


def _unknown(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f"No such command '{name}'." + (f" Did you mean '{close[0]}'?" if close else "")


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
