"""Tables of one shape for terminal and page; output that outlives its reader, without control characters of others."""

import io
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from hf_efficient.text import printable

LONGEST_BAR = 24
_MOST_COLUMNS = 1000


@dataclass(frozen=True)
class FoundTable:
    headings: Sequence[str]  # of the columns; the first names what the rows are
    rows: Sequence[Sequence[str]]
    title: str = ""
    summary: str = ""  # a sentence without a full stop
    left_out: str = ""
    words: Collection[int] = (0,)  # places of the columns that hold words
    shares: Sequence[float] | None = None  # of 1, for a bar behind each row
    total: Sequence[str] | None = None  # a last row


def drawn(found: FoundTable) -> Table:
    """On a narrow terminal words are cut, not the figures."""
    made = table(*found.headings, words=found.words)
    made.columns[0].header = cut(found.headings[0])
    if found.shares is not None:
        made.add_column("", no_wrap=True)
    for place, row in enumerate(found.rows):
        bar = [] if found.shares is None else [share_bar(found.shares[place])]
        made.add_row(*map(cut, row), *bar)
    if found.total is not None:
        made.add_row(Text(found.total[0], "bold"), *found.total[1:])
    return made


def has_colour() -> bool:
    """Whether standard output is a terminal that shows colour; ``NO_COLOR`` and ``FORCE_COLOR`` count."""
    console = Console()
    return console.color_system is not None and not console.no_color


def show(parts: Iterable[RenderableType], file: TextIO | None = None, width: int | None = None) -> None:
    console = Console(file=file, highlight=False, width=width)
    for part in parts:
        console.print(part)


def table(*headings: str, words: Collection[int] = (0,), gap: int = 2) -> Table:
    """A table without lines; ``words`` are the places of the columns that hold words."""
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for place, heading in enumerate(headings):
        is_words = place in words
        made.add_column(heading, justify="left" if is_words else "right", no_wrap=not is_words)
    return made


def grid(rows: Iterable[tuple[str, str]], style: str = "bold") -> Table:
    made = Table.grid(Column(no_wrap=True, style=style), "", padding=(0, 2, 0, 0))
    for name, value in rows:
        made.add_row(Text(name), Text(value))
    return made


def dim_lines(title: str, lines: Iterable[str]) -> Iterator[RenderableType]:
    indented = [hanging(" ", Text(line, "dim")) for line in lines]
    if indented:
        yield Text(title, "dim")
        yield from indented


def hanging(mark: str, text: Text) -> Table:
    """What does not fit on the first line begins below its words."""
    made = Table.grid(Column(no_wrap=True), "", padding=(0, 1, 0, 0))
    made.add_row(Text(mark, text.style), text)
    return made


def share_bar(part: float, longest: int = LONGEST_BAR) -> Text:
    return Text("█" * round(longest * min(max(part, 0.0), 1.0)), "cyan")


def cut(text: str) -> Text:
    """On one line, cut off where the column is too narrow: the figures beside it stay whole."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def markdown_table(found: FoundTable) -> list[str]:
    rows = [found.headings, ["---"] * len(found.headings), *found.rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


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
    """Let standard output and error of this process be lasting ones; a terminal that can have no such number of columns
    has the usual one."""
    columns = os.environ.get("COLUMNS", "").strip()
    if columns.isdigit() and not 0 < int(columns) <= _MOST_COLUMNS:
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
