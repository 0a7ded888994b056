"""A file of lines that grows: what came since the last look, in blocks of whole lines."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hf_efficient.account.reading import parse_line
from hf_efficient.errors import OutputError

__all__ = ["Block", "Replaced", "Tail"]

logger = logging.getLogger(__name__)

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
