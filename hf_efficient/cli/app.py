"""``hf-efficient``: the table of commands, the way in, and how a command ends.

To add a command: write a function ``NAME`` in ``cli/NAME.py``, or beside its like (its parameters are typer's, its
docstring is the help and shows an example), and a line in ``commands.json``. Import what it needs inside the function,
so that ``--help`` stays instant. Raise ``HfEfficientError`` for what the user can correct
and ``typer.Exit(1)`` where the answer is no.

Exit codes: 0 done; 1 the command ran and the answer is no, or a defect of ours; 2 bad input (the recipe, the data, the
flags, this machine); 130 interrupted from the keyboard.
"""

import importlib
import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from hf_efficient.cli.output import bare_switches, json_alone, misplaced_argument, unknown_flag
from hf_efficient.errors import HfEfficientError, SetupError
from hf_efficient.facts.environment import missing_package, quieten_libraries
from hf_efficient.reporting.terminal import last_streams, lost_output
from hf_efficient.text import printable
from hf_efficient.version import __version__

_BAD_INPUT, _INTERRUPTED = 2, 130

_PANELS: dict[str, dict[str, tuple[str, str]]] = json.loads(Path(__file__).with_name("commands.json").read_text())
_FILES = {name: file for commands in _PANELS.values() for name, (file, _) in commands.items()}
COMMANDS = {name: line for commands in _PANELS.values() for name, (_, line) in commands.items()}
"""Name and the line in the list."""


class _LazyGroup(TyperGroup):
    """Imports a command's module when the command is used, not to list it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"hf_efficient.cli.{_FILES.get(cmd_name, cmd_name)}")
        found = getattr(module, cmd_name.replace("-", "_"))
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
            found.command(cmd_name)(function)
        command: Any = typer.main.get_command(found)
        command.name, command.short_help = cmd_name, COMMANDS[cmd_name]
        command.rich_help_panel = next((panel for panel, commands in _PANELS.items() if cmd_name in commands), "Other")
        for one in (command, *getattr(command, "commands", {}).values()):
            one.help = re.sub(r"(?<!\n)\n(?!\n)", " ", one.help or "")  # rich keeps the breaks of a docstring
            bare_switches(one.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        bare_switches(params)
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        names: Any = dict.fromkeys(COMMANDS)
        self.commands = names  # of which typer names the nearest
        name, command, rest = super().resolve_command(ctx, args)
        # the script of `run` has flags of its own
        wrong = None if name is None or name == "run" else misplaced_argument(name, rest) or unknown_flag(command, rest)
        if wrong is not None:
            raise SetupError(wrong)
        # --debug may stand anywhere; a command that passes it on gets it back.
        if command is not None and ctx.obj and any(param.name == "debug" for param in command.params):
            rest = ["--debug", *rest]
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Here, because the layer above prints "Aborted!" before it exits.
            raise SystemExit(_INTERRUPTED) from None


_app = typer.Typer(cls=_LazyGroup, rich_markup_mode="rich", pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@_app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
    debug: Annotated[bool, Option("--debug", help="Anywhere: show the traceback of an error.")] = False,
) -> None:
    """Fine-tuning with Hugging Face that is predictable, explained and cheap.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run ``hf-efficient`` with ``argv`` (default: the process's) and exit, always by ``SystemExit``."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = next((arg for arg in given if not arg.startswith("-")), None)
    script = command == "run"  # whose flags and output are its own
    ours = given[: given.index("run")] if script else given
    debug = "--debug" in ours
    args = [*(arg for arg in ours if arg != "--debug"), *given[len(ours) :]] or ["--help"]
    if not script:
        quieten_libraries(debug=debug)
    last_streams()
    with messages_on_stderr(), json_alone("--json" in ours and "--help" not in ours):
        code = _guarded(args, debug)
    why = "" if code else lost_output()
    if why:
        print(f"error: standard output cannot be written: {why}.", file=sys.stderr)
    raise SystemExit(_BAD_INPUT if why else code)


def _guarded(args: list[str], debug: bool) -> int:
    """The exit code; the one place that turns exceptions into messages and codes. ``SystemExit`` passes through."""
    try:
        group = typer.main.get_command(_app)
        return group.main(args, prog_name="hf-efficient", obj=debug, standalone_mode=False) or 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except HfEfficientError as error:
        return _tell(error, debug)
    except Exception as error:  # noqa: BLE001  the last resort: everything else is a defect
        lacking = missing_package(error.name) if isinstance(error, ModuleNotFoundError) else None
        if lacking is not None:
            return _tell(lacking, debug)
        if isinstance(error, typer.BadParameter.__mro__[1:3]):  # typer's errors of usage
            usage: Any = error
            words = _usage_words(usage)
            if words:
                print(f"error: {words}", file=sys.stderr)
            else:
                usage.show()
            return int(usage.exit_code)
        _print_defect(error, debug)
        return 1


def _usage_words(usage: Any) -> str:
    """Empty where typer's own are as good."""
    if "valid number" in str(usage) or "valid integer" in str(usage):
        return _no_number(usage)
    param = getattr(usage, "param", None)
    if param is None or type(usage).__name__ != "MissingParameter":
        return ""
    name, about = param.metavar or param.human_readable_name, (getattr(param, "help", None) or "").rstrip(".")
    flag = f"{param.opts[0]} " if param.param_type_name == "option" else ""
    return f"{flag.strip() or name}: is missing. Write {flag}{name}" + (f" ({about})." if about else ".")


def _no_number(usage: Any) -> str:
    flag = next(iter(usage.param.opts), "a number") if usage.param is not None else "a number"
    kind = "whole number" if "integer" in str(usage) else "number"
    return f"{flag}: takes a {kind}, and got something else. Write it without a unit: {flag} 20."


def _tell(error: HfEfficientError, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"error: {printable(line)}", file=sys.stderr)
    return error.exit_code


def _print_defect(error: Exception, debug: bool) -> None:
    if debug:
        traceback.print_exc()
        return
    what = printable(" ".join(f"{type(error).__name__}: {error}".split()))
    remedy = "Run it again with --debug for the traceback, and report it with the output of `hf-efficient env`."
    print(f"error: this is a defect of hf_efficient: {what}. {remedy}", file=sys.stderr)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(printable(self.format(record)), file=sys.stderr, flush=True)


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
