"""Append-only JSON lines of a run directory: a crash leaves whole lines, a folder that vanished is noticed."""

import logging
import threading
from pathlib import Path

from hf_efficient.run_dir.reading import TAIL_BYTES, parse_line

logger = logging.getLogger(__name__)


class FaultLatch:
    """Warns of one fault of several files that fail together."""

    def __init__(self) -> None:
        self.told = False
        self._lock = threading.Lock()

    def tell(self, path: Path, error: Exception) -> None:
        with self._lock:
            first, self.told = not self.told, True
        if first:
            logger.warning("%s cannot be written (%s). Training continues; its steps are not recorded.", path, error)


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
            logger.info("%s: a half-written last line is cut off", path)
            file.truncate(tail_start + len(kept) + len(newline))
