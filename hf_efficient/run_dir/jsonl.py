"""The JSON lines of a run directory: appended so that a crash leaves whole lines, and read while they grow."""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records.steps import SCHEMA_VERSION, StepRecord

logger = logging.getLogger(__name__)

TAIL_BYTES = 65536  # more than a line is long

_BLOCK_BYTES = 1 << 20
_MARK_BYTES = 256


_HUGE = re.compile(rb"[:,\[]\s*-?[\d.]+[eE]\+?\d{3}|\d{40}")
_LARGEST = 1e100  # sums, products and squares of figures stay finite


def is_huge(text: bytes, data: Any) -> bool:
    """Whether JSON holds a number that no run has, and that arithmetic makes infinite; ``data`` is what it says."""
    return _HUGE.search(text) is not None and _exceeds(data)


def _exceeds(data: Any) -> bool:
    if isinstance(data, dict | list):
        return any(map(_exceeds, data.values() if isinstance(data, dict) else data))
    return isinstance(data, int | float) and abs(data) > _LARGEST


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where there is none, not a whole one, or one with a number that no run has."""
    try:
        data = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return data if isinstance(data, dict) and not is_huge(line, data) else None


def check_version(path: Path, number: int, data: dict[str, Any]) -> None:
    """Refuse, with ``OutputError``, a line that a newer version wrote."""
    version = data.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise OutputError(
            f"{path}:{number}: schema_version {version} is newer than {SCHEMA_VERSION}, which is read here: "
            "upgrade hf-efficient"
        )


def last_record(path: Path, numbered: str = "", kinds: Sequence[str] = ()) -> dict[str, Any] | None:
    """The last complete line of a JSONL file; None without one, or without a readable file. ``numbered`` is a key under
    which the line must hold a whole number, so that a broken one is passed over; ``kinds``: of which it must be one."""
    try:
        with path.open("rb") as file:
            size, length = file.seek(0, 2), TAIL_BYTES
            while True:  # a power cut can leave megabytes of zeros behind the last record
                file.seek(max(0, size - length))
                for line in reversed(file.read(size).split(b"\n")):
                    record = parse_line(line)
                    if record is None or (numbered and not isinstance(record.get(numbered), int)):
                        continue
                    if not kinds or record.get("kind") in kinds:
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
    """Whole lines of a file."""

    path: Path
    first_line: int
    lines: int
    text: bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return zip(itertools.count(self.first_line), self.text.split(b"\n"), strict=False)


class Tail:
    """A file of lines that grows: at each call what came since the last, in blocks of whole lines. A last line without
    its newline waits for its rest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._lines = 0
        self._mark = b""

    def blocks(self) -> Iterator[Block]:
        """What came since the last call. Raises ``OutputError``: the file cannot be read; ``Replaced``."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset - len(self._mark))
                if file.read(len(self._mark)) != self._mark:
                    raise Replaced(str(self.path))
                yield from self._blocks(file)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._offset:
                raise Replaced(str(self.path)) from error
            message = f"{self.path}: cannot be read ({error.strerror}); name a run's {self.path.name}"
            raise OutputError(message) from error

    def _blocks(self, file: BinaryIO) -> Iterator[Block]:
        while text := file.read(_BLOCK_BYTES):
            if not text.endswith(b"\n"):
                text += file.readline()
            whole = text[: text.rfind(b"\n") + 1]
            block = Block(self.path, self._lines + 1, whole.count(b"\n"), whole)
            self._offset += len(whole)
            self._lines += block.lines
            self._mark = (self._mark + whole[-_MARK_BYTES:])[-_MARK_BYTES:]
            if whole:
                yield block
            if whole != text:
                return


_L = TypeVar("_L", bound=Any)  # has a ``schema_version``


class LineReader(Generic[_L]):
    """Blocks of lines in, structs out; a block that msgspec refuses is read again line by line, its faults logged."""

    def __init__(self, kind: type[_L], what: str) -> None:
        self._kind, self._what = kind, what  # what messages call it: ``step record``
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, block: Block) -> tuple[list[_L], int]:
        """The structs of the lines, and how many lines hold something else and are left out. Raises ``OutputError``: a
        line was written by a newer version."""
        try:
            lines = self._decoder.decode_lines(block.text)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return self._one_by_one(block)
        newer = any(line.schema_version > SCHEMA_VERSION for line in lines)
        is_whole = len(lines) == block.lines and not newer and not _HUGE.search(block.text)
        return (lines, 0) if is_whole else self._one_by_one(block)

    def hand_over(self, tail: Tail, take: Callable[[list[_L]], object]) -> int:
        """What came since the last look, block by block; returns how many lines hold something else."""
        skipped = 0
        for lines, others in map(self.read, tail.blocks()):
            skipped += others
            if lines:
                take(lines)
        return skipped

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


class JsonlFile:
    """Appends lines, and ends them with a tail that the next lines take the place of. The file is opened anew each
    time, so that a folder that vanished raises rather than being written to in vain. Used by one thread at a time. All
    methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tail_length = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        _repair_end(path)

    def append(self, lines: bytes, tail: bytes = b"") -> None:
        """Whole lines, each with its end, and a tail that is one line or empty."""
        text = lines + tail
        if not text:
            return
        missing = self._tail_length - len(text)
        if missing > 0:  # cover the old tail to its end, so that no kill can leave a piece of it
            text = text[:-1] + b" " * missing + b"\n"
        with self.path.open("rb+" if self._tail_length else "ab") as file:
            if self._tail_length:
                file.seek(-self._tail_length, 2)
            file.write(text)
        self._tail_length = len(text) - len(lines) if tail else 0

    def move_to(self, path: Path) -> None:
        """Continue in another file of this file system, to which what was written goes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self.path.replace(path)
        self.path = path


def _repair_end(path: Path) -> None:
    """End the file with a newline: half a line is cut off; a whole one, or one longer than any record, gets its end."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        tail_start = max(0, size - TAIL_BYTES)
        file.seek(tail_start)
        tail = file.read()
        if tail.endswith(b"\n"):
            return
        kept, newline, rest = tail.rpartition(b"\n")
        too_long = not newline and tail_start > 0  # no record, but zeros that a power cut left
        if too_long or parse_line(rest) is not None:
            file.write(b"\n")
        else:
            logger.info("%s: a half-written last line is removed", path)
            file.truncate(tail_start + len(kept) + len(newline))
