"""JSON lines read while they grow, and after a crash."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records.steps import SCHEMA_VERSION, StepRecord

logger = logging.getLogger(__name__)

TAIL_BYTES = 65536  # more than a line is long

_BLOCK_BYTES = 1 << 20
_MARK_BYTES = 256


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where there is none, or not a whole one."""
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def check_version(path: Path, number: int, data: dict[str, Any]) -> None:
    """Refuse, with ``OutputError``, a line that a newer version wrote."""
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise OutputError(
            f"{path}:{number}: schema_version {version} is newer than {SCHEMA_VERSION}, which is read here: "
            "upgrade hf-efficient"
        )


def last_record(path: Path, numbered: str = "") -> dict[str, Any] | None:
    """The last complete line of a JSONL file; None without one, or without a readable file. ``numbered`` is a key under
    which the line must hold a whole number, so that a broken one is passed over."""
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


class Replaced(Exception):
    """The file is not the one that was read before: a run was started anew in its folder."""


@dataclass(frozen=True)
class Block:
    """Whole lines of a file; the last line of the file may lack its newline."""

    path: Path
    first_line: int
    lines: int
    text: bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return zip(itertools.count(self.first_line), self.text.split(b"\n"), strict=False)


class Tail:
    """A file of lines that grows: at each call what came since the last, in blocks of whole lines. A last line without
    its newline is taken where it is a whole JSON object, and waits for its rest where it is not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0
        self._mark = b""
        self._line_is_open = False

    @property
    def unread_bytes(self) -> int:
        try:
            return max(0, self.path.stat().st_size - self._offset)
        except OSError:
            return 0

    def blocks(self) -> Iterator[Block]:
        """What came since the last call. Raises ``OutputError``: the file cannot be read; ``Replaced``."""
        try:
            with self.path.open("rb") as file:
                self._continue(file)
                yield from self._blocks(file)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._offset:
                raise Replaced(str(self.path)) from error
            message = f"{self.path}: cannot be read ({error.strerror}); name a run's {self.path.name}"
            raise OutputError(message) from error

    def _continue(self, file: BinaryIO) -> None:
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
                logger.debug("%s:%d is half-written and skipped", self.path, self._lines + 1)
            return

    def _took(self, text: bytes) -> Block:
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        block = Block(self.path, self._lines + 1, lines, text)
        self._offset += len(text)
        self._lines += lines
        self._mark = (self._mark + text[-_MARK_BYTES:])[-_MARK_BYTES:]
        return block


class _Versioned(Protocol):
    @property
    def schema_version(self) -> int: ...


_L = TypeVar("_L", bound=_Versioned)


_OLD_TARGET = b'"loss_bearing":'
"""The name of the target tokens until 2026-11."""


class LineReader(Generic[_L]):
    """Blocks of lines in, structs out; a block that msgspec refuses is read again line by line, its faults logged."""

    def __init__(self, kind: type[_L], what: str) -> None:
        self._kind, self._what = kind, what  # what messages call it: ``step record``
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, block: Block) -> tuple[list[_L], int]:
        """The structs of the lines, and how many lines hold something else and are left out. Raises ``OutputError``: a
        line was written by a newer version."""
        if _OLD_TARGET in block.text:
            block = replace(block, text=block.text.replace(_OLD_TARGET, b'"target":'))
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
                check_version(block.path, number, data)
                try:
                    found.append(msgspec.convert(data, self._kind))
                    continue
                except msgspec.ValidationError as error:
                    fault = f"not a {self._what}: {error}"
            else:
                fault = "not a JSON object" if text.strip() else ""
            if fault:
                skipped += 1
                logger.warning("%s:%d is %s; it is skipped", block.path, number, fault)
        return found, skipped


_STEPS = LineReader(StepRecord, "step record")


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The step records of a file, in the order written; broken lines are skipped and logged. Raises ``OutputError``:
    the file cannot be read, or was written by a newer version."""
    for block in Tail(path).blocks():
        yield from _STEPS.read(block)[0]
