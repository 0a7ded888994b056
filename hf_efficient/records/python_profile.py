"""What profilers of Python found."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "CodeLine",
    "FunctionLines",
    "FunctionTable",
    "FunctionTime",
    "HostMemoryLine",
    "HostMemoryTable",
    "LineTable",
]


@dataclass(frozen=True)
class FunctionTime:
    """One function.

    Attributes:
        place: ``transformers/trainer.py:1900 _run_epoch``, or the name of a function of C.
        self_seconds: in the function itself.
        total_seconds: with what it calls.
        calls: how often; None where samples were taken.
    """

    place: str
    self_seconds: float
    total_seconds: float
    calls: int | None = None


@dataclass(frozen=True)
class FunctionTable:
    """The functions of one process, the dearest first by their own time.

    Attributes:
        process: ``main`` or ``worker 0``, of the data loader.
        tool: ``cprofile`` or ``pyinstrument``.
        seconds: sum over all functions.
        functions: the dearest.
        left_out: how many further ones there were.
    """

    process: str
    tool: str
    seconds: float
    functions: list[FunctionTime] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class CodeLine:
    """One line of a function: its number, its text, how often it ran, and how long that took together."""

    line: int
    text: str
    hits: int
    seconds: float


@dataclass(frozen=True)
class FunctionLines:
    """One function line by line; a line that never ran is left out."""

    place: str
    seconds: float
    lines: list[CodeLine] = field(default_factory=list)


@dataclass(frozen=True)
class LineTable:
    """The named functions, on the thread that trains."""

    functions: list[FunctionLines] = field(default_factory=list)


@dataclass(frozen=True)
class HostMemoryLine:
    """What a line of a named function, with all that it calls, held of the host's memory at the peak."""

    place: str
    text: str
    bytes: int
    allocations: int


@dataclass(frozen=True)
class HostMemoryTable:
    """The lines of the named functions, the largest first.

    Attributes:
        peak_bytes: of the process, in what was allocated since the instrument began.
        lines: what of it was allocated under the named functions.
    """

    peak_bytes: int
    lines: list[HostMemoryLine] = field(default_factory=list)
