"""A group of commands whose modules are imported when a command is used, not to list them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from hf_efficient.cli.errors import INTERRUPTED

__all__ = ["LazyCommand", "lazy_group"]


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
