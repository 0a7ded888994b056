"""What a terminal gets: standard output and error that outlive their reader, and no control characters of others."""

import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from hf_efficient.text import printable

_lost: list[OSError] = []


class Lasting(io.TextIOWrapper):
    """A text file whose reader may leave (``... | head``), or whose disk may be full: the rest is left out, so that no
    run ends for it. A character that the encoding lacks is a question mark."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._leave_out(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._leave_out(error)

    def _leave_out(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            _lost.append(error)
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


def last_streams() -> None:
    """Let standard output and error of this process be lasting ones; a terminal of no columns has the usual number."""
    columns = os.environ.get("COLUMNS", "").strip()
    if columns.isdigit() and int(columns) == 0:
        del os.environ["COLUMNS"]
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            lines, at_once = stream.line_buffering, stream.write_through
            made = Lasting(stream.buffer, stream.encoding, "replace", line_buffering=lines, write_through=at_once)
            setattr(sys, name, made)


def lost_output() -> str:
    """Why standard output or error could not be written, other than for a reader that left; empty: they could."""
    sys.stdout.flush()
    return str(_lost[0].strerror) if _lost else ""


class Console(rich.console.Console):
    """Of rich, with the control characters of the text in view."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for part in super().render(renderable, options):
            yield part if part.control else part._replace(text=printable(part.text))
