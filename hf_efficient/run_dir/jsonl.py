"""The JSON lines of a run directory: appended so that a crash leaves whole lines, and read while they grow."""

import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.records.steps import SCHEMA_VERSION
from hf_efficient.run_dir.json_file import check_version

logger = logging.getLogger(__name__)

TAIL_BYTES = 65536  # more than a line is long

_BLOCK_BYTES = 1 << 20
_MARK_BYTES = 256
_OBJECT = msgspec.json.Decoder(dict[str, Any])


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line; None where there is none, or not a whole one."""
    try:
        return _OBJECT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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

    def read(self, tail: Tail, take: Callable[[list[_L]], object]) -> int:
        """Hand over what came since the last look, block by block; returns how many lines hold something else and are
        left out. Raises ``OutputError``: a line was written by a newer version."""
        skipped = 0
        for block in tail.blocks():
            found: list[_L] = []
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                found = self._decoder.decode_lines(block.text)
            if len(found) != block.lines or any(line.schema_version > SCHEMA_VERSION for line in found):
                found = []
                skipped += each_object(block, functools.partial(self._add, found))
            if found:
                take(found)
        return skipped

    def _add(self, found: list[_L], data: dict[str, Any]) -> str:
        try:
            found.append(msgspec.convert(data, self._kind))
        except msgspec.ValidationError as error:
            return f"not a {self._what}: {error}"
        return ""


def each_object(block: Block, take: Callable[[dict[str, Any]], str], told: set[int] | None = None) -> int:
    """Hand each line to ``take``, which says what it is where it holds something else. Returns how many such lines are
    skipped, and logs them but for those in ``told``. Raises ``OutputError``: a newer version wrote one."""
    skipped, told = 0, set() if told is None else told
    for number, text in block:
        if not text.strip():
            continue
        data, fault = parse_line(text), "not a JSON object"
        if data is not None:
            check_version(f"{block.path}:{number}", data.get("schema_version"), SCHEMA_VERSION)
            fault = take(data)
        skipped += bool(fault)
        if fault and number not in told:
            told.add(number)
            logger.warning("%s:%d is %s; it is skipped", block.path, number, fault)
    return skipped


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
