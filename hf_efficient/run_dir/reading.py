"""A run's records from their files, as a stream: while the run goes on, and after a crash.

A file of lines that grows: what came since the last look, in blocks of whole lines.

Lines of a file as typed objects, thousands at a time.

Millions of them are read for one report, so they are decoded by msgspec, straight into their types, block by block.
What it refuses (a broken line, a literal NaN, a newer schema) is read again line by line as everywhere else.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records.steps import SCHEMA_VERSION, StepRecord

logger = logging.getLogger(__name__)

TAIL_BYTES = 65536
"""More than a line is long."""


def records_path(directory: Path, kind: str, rank: int) -> Path:
    """``steps.jsonl`` or ``spans.jsonl``; ``steps.rankN.jsonl`` of rank N > 0."""
    return directory / (f"{kind}.jsonl" if rank == 0 else f"{kind}.rank{rank}.jsonl")


def rank_files(directory: Path, kind: str) -> dict[int, Path]:
    """The files of this kind by rank, in the order of the ranks."""
    found = {}
    for path in directory.glob(f"{kind}*.jsonl"):
        match = re.fullmatch(rf"{kind}(?:\.rank(\d+))?\.jsonl", path.name)
        if match:
            found[int(match[1] or 0)] = path
    return dict(sorted(found.items()))


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and JSON objects of a file, in the order written.

    A last line that is only half there is skipped, and so is a broken line in the middle; both are logged.

    Raises:
        OutputError: the file cannot be read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); name a run's {path.name}") from error
    with file:
        for number, line in enumerate(file, start=1):
            data = parse_line(line)
            if data is not None:
                yield number, data
            elif not line.strip():
                continue
            elif not line.endswith(b"\n"):
                logger.info("%s:%d is half-written and skipped", path, number)
            else:
                logger.warning("%s:%d is not a JSON object and skipped", path, number)


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The step records of a file, in the order written; broken lines are skipped as by ``read_lines``.

    Raises:
        OutputError: the file cannot be read, or was written by a newer version.
    """
    for number, data in read_lines(path):
        try:
            yield StepRecord.from_json(data)
        except ValueError as error:
            raise OutputError(f"{path}:{number}: {error}") from error


def last_record(path: Path, numbered: str = "") -> dict[str, Any] | None:
    """The last complete line of a JSONL file as a dict; None without one, or without a readable file.

    Args:
        path: of the file.
        numbered: key under which the line must hold a whole number, so that a broken one is passed over.
    """
    try:
        with path.open("rb") as file:
            size, length = file.seek(0, 2), TAIL_BYTES
            while True:  # a power cut can leave megabytes of zeros behind the last record
                file.seek(max(0, size - length))
                for line in reversed(file.read(size).split(b"\n")):
                    record = parse_line(line)
                    if record is not None and (not numbered or isinstance(record.get(numbered), int)):
                        return record
                if length >= size:
                    return None
                length *= 16
    except OSError:
        return None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where there is none, or not a whole one."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def check_version(path: Path, number: int, data: dict[str, Any]) -> None:
    """Refuse a line that a newer version wrote.

    Raises:
        OutputError: it did.
        ValueError: it tells no version.
    """
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int):
        raise ValueError(f"not a record: schema_version is {version!r}")
    if version > SCHEMA_VERSION:
        raise OutputError(
            f"{path}:{number}: schema_version {version} is newer than {SCHEMA_VERSION}, which is read here: "
            "upgrade hf-efficient"
        )


_BLOCK_BYTES = 1 << 18
_MARK_BYTES = 256


class Replaced(Exception):
    """The file is not the one that was read before: a run was started anew in its folder."""


@dataclass(frozen=True)
class Block:
    """Whole lines.

    Attributes:
        path: of the file.
        first_line: number of the first one, from 1.
        lines: how many.
        text: each with its newline, but perhaps the last line of the file.
    """

    path: Path
    first_line: int
    lines: int
    text: bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Numbers and lines."""
        return zip(itertools.count(self.first_line), self.text.split(b"\n"), strict=False)


class Tail:
    """Reads a file from where it was left.

    A last line without its newline is taken where it is a whole JSON object, and waits for its rest where it is not.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read before ``blocks``."""
        self.path = path
        self._offset = 0
        self._lines = 0
        self._mark = b""
        self._line_is_open = False

    @property
    def unread_bytes(self) -> int:
        """By how much the file is longer than what has been read."""
        try:
            return max(0, self.path.stat().st_size - self._offset)
        except OSError:
            return 0

    def blocks(self) -> Iterator[Block]:
        """What came since the last call.

        Raises:
            OutputError: the file cannot be read.
            Replaced: it does not go on from where it was left.
        """
        try:
            with self.path.open("rb") as file:
                self._go_on(file)
                yield from self._blocks(file)
        except FileNotFoundError as error:
            if self._offset:
                raise Replaced(str(self.path)) from error
            raise self._unreadable(error) from error
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> OutputError:
        return OutputError(f"{self.path}: cannot be read ({error.strerror}); name a run's {self.path.name}")

    def _go_on(self, file: BinaryIO) -> None:
        file.seek(self._offset - len(self._mark))
        if file.read(len(self._mark)) != self._mark:
            raise Replaced(str(self.path))
        if self._line_is_open:
            newline = file.read(1)
            if newline not in (b"", b"\n"):
                raise Replaced(str(self.path))
            if newline:
                self._offset += 1
                self._mark += newline
                self._line_is_open = False

    def _blocks(self, file: BinaryIO) -> Iterator[Block]:
        while text := file.read(_BLOCK_BYTES):
            if not text.endswith(b"\n"):
                text += file.readline()
            if text.endswith(b"\n"):
                yield self._took(text)
                continue
            whole, newline, rest = text.rpartition(b"\n")
            if newline:
                yield self._took(whole + newline)
            if parse_line(rest) is not None:
                self._line_is_open = True
                yield self._took(rest)
            elif rest.strip():
                logger.info("%s:%d is half-written and skipped", self.path, self._lines + 1)
            return

    def _took(self, text: bytes) -> Block:
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        block = Block(self.path, self._lines + 1, lines, text)
        self._offset += len(text)
        self._lines += lines
        self._mark = (self._mark + text[-_MARK_BYTES:])[-_MARK_BYTES:]
        return block


class Line(msgspec.Struct, gc=False, kw_only=True):
    """What every line holds."""

    schema_version: int = SCHEMA_VERSION


_L = TypeVar("_L", bound=Line)


class LineReader(Generic[_L]):
    """Blocks of lines in, typed objects out."""

    def __init__(self, kind: type[_L], what: str, checked: Callable[[_L], None] = lambda line: None) -> None:
        """One per kind of line.

        Args:
            kind: what to read them into.
            what: to call it in messages: ``step record``.
            checked: raises ValueError for a line that msgspec would not have let through.
        """
        self._kind, self._what, self._checked = kind, what, checked
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, block: Block) -> tuple[list[_L], int]:
        """The objects of the lines, and how many lines hold something else: they are logged and left out.

        Raises:
            OutputError: a line was written by a newer version.
        """
        try:
            lines = self._decoder.decode_lines(block.text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._one_by_one(block)
        newer = any(line.schema_version > SCHEMA_VERSION for line in lines)
        return (lines, 0) if len(lines) == block.lines and not newer else self._one_by_one(block)

    def _one_by_one(self, block: Block) -> tuple[list[_L], int]:
        found, skipped = [], 0
        for number, text in block:
            data = parse_line(text)
            if data is not None:
                try:
                    check_version(block.path, number, data)
                    found.append(self._line(data))
                except ValueError as fault:
                    skipped += 1
                    logger.warning("%s:%d is %s; it is skipped", block.path, number, fault)
            elif text.strip():
                skipped += 1
                logger.warning("%s:%d is not a JSON object and skipped", block.path, number)
        return found, skipped

    def _line(self, data: Mapping[str, Any]) -> _L:
        try:
            for field in msgspec.structs.fields(self._kind):
                if field.required:
                    data[field.encode_name]  # a KeyError names it
            line = msgspec.convert(data, self._kind, strict=False)
            self._checked(line)
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            told = f"{type(error).__name__}: {error}"
            raise ValueError(f"not a {self._what}: {told}") from error
        return line
