"""The lines of ``steps.jsonl`` as typed objects: what sums and series take in, thousands at a time.

Millions of them are read for one report, so they are decoded by msgspec, straight into these types, block by block.
What it refuses (a broken line, a literal NaN, a newer schema) is read again line by line as everywhere else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from hf_efficient.account.reading import check_version, parse_line
from hf_efficient.account.tail import Block
from hf_efficient.errors import OutputError
from hf_efficient.records import SCHEMA_VERSION

__all__ = [
    "LineReader",
    "MemoryPart",
    "SequencesPart",
    "StepLine",
    "SumLine",
    "TokensPart",
    "WorkPart",
    "step_reader",
    "step_seconds",
]

logger = logging.getLogger(__name__)


class TokensPart(msgspec.Struct, gc=False):
    """See ``TokenCounts``."""

    processed: int | None
    non_padding: int | None
    loss_bearing: int | None


class SequencesPart(msgspec.Struct, gc=False):
    """See ``SequenceCounts``."""

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: dict[str, int] = {}


class WorkPart(msgspec.Struct, gc=False):
    """See ``StepWork``."""

    model_flops: int
    hardware_flops: int


class MemoryPart(msgspec.Struct, gc=False):
    """See ``StepMemory``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: dict[str, int] = {}
    allocation_retries: int = 0


class SumLine(msgspec.Struct, gc=False, kw_only=True):
    """What the sums of any rank need of a step record (see ``StepRecord``)."""

    segment: int
    wall_seconds: float
    phase_seconds: dict[str, float]
    tokens: TokensPart
    step: int
    started_at_seconds: float
    sequences: SequencesPart | None = None
    work: WorkPart | None = None
    schema_version: int = SCHEMA_VERSION


class StepLine(SumLine, gc=False, kw_only=True):
    """What the series of rank 0 need beside it."""

    memory: MemoryPart | None = None
    device_seconds: dict[str, float] | None = None
    loss: float | str | None = None
    learning_rate: float | str | None = None
    grad_norm: float | str | None = None


_L = TypeVar("_L", bound=msgspec.Struct)


class LineReader(Generic[_L]):
    """Blocks of lines in, typed objects out."""

    def __init__(self, kind: type[_L], what: str, checked: Callable[[_L], None] = lambda line: None) -> None:
        """One per kind of line.

        Args:
            kind: what to read them into; has a ``schema_version``.
            what: to call it in messages: ``step record``.
            checked: raises ValueError for a line that msgspec would not have let through.
        """
        self._kind, self._what, self._checked = kind, what, checked
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, block: Block) -> list[_L]:
        """The objects of the lines; lines without one are logged and left out.

        Raises:
            OutputError: a line holds something else, or was written by a newer version.
        """
        try:
            lines = self._decoder.decode_lines(block.text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._one_by_one(block)
        newer = any(line.schema_version > SCHEMA_VERSION for line in lines)  # type: ignore[attr-defined]
        return lines if len(lines) == block.lines and not newer else self._one_by_one(block)

    def _one_by_one(self, block: Block) -> list[_L]:
        found = []
        for number, text in block:
            data = parse_line(text)
            if data is not None:
                check_version(block.path, number, data)
                found.append(self._line(block, number, data))
            elif text.strip():
                logger.warning("%s:%d is not a JSON object and skipped", block.path, number)
        return found

    def _line(self, block: Block, number: int, data: Mapping[str, Any]) -> _L:
        try:
            for field in msgspec.structs.fields(self._kind):
                if field.required:
                    data[field.encode_name]  # a KeyError names it
            line = msgspec.convert(data, self._kind, strict=False)
            self._checked(line)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            told = f"{type(error).__name__}: {error}"
            raise OutputError(f"{block.path}:{number}: not a {self._what}: {told}") from error
        return line


def _finite(line: SumLine) -> None:
    for name in ("wall_seconds", "started_at_seconds"):
        if not math.isfinite(getattr(line, name)):
            raise ValueError(f"{name} is {getattr(line, name)}")
    for name, seconds in line.phase_seconds.items():
        if not math.isfinite(seconds):
            raise ValueError(f"phase_seconds.{name} is {seconds}")


def step_reader(rank: int) -> LineReader[Any]:
    """Reads StepLines of rank 0, SumLines of the others."""
    return LineReader(StepLine if rank == 0 else SumLine, "step record", _finite)


def step_seconds(line: SumLine) -> float:
    """Wall of a step without its evaluation and checkpointing."""
    phases = line.phase_seconds
    return line.wall_seconds - (phases.get("evaluation", 0.0) + phases.get("checkpointing", 0.0))
