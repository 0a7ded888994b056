"""Append-only JSON lines, written by a thread of their own: training never waits for a disk."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_efficient.errors import OutputError
from hf_efficient.records import StepRecord

__all__ = ["JsonlStream", "last_record", "read_steps"]

logger = logging.getLogger(__name__)

_TAIL_BYTES = 65536


class JsonlStream:
    """Appends records to a file, at least once per ``flush_seconds``.

    ``write`` only queues. The file is opened anew for every batch of lines, so a folder that vanished is
    noticed rather than written to in vain. A fault (disk full, read-only, vanished) ends the stream with one
    warning and never reaches the caller. What a killed process had queued in its last ``flush_seconds`` is
    lost.
    """

    def __init__(self, path: Path, flush_seconds: float = 1.0) -> None:
        """Create the folder, mend the end of a file that a crash left half-written, start the thread."""
        self.path = path
        self._queue: deque[Mapping[str, Any]] = deque()
        self._closing = threading.Event()
        self._broken = False
        self._flush_seconds = flush_seconds
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _repair_end(path)
        except OSError as error:
            self._fault(error)
        self._thread = threading.Thread(target=self._run, name=f"write {path.name}", daemon=True)
        self._thread.start()

    def write(self, record: Mapping[str, Any]) -> None:
        """Queue one record (a JSON object); returns at once, raises nothing."""
        if not self._broken:
            self._queue.append(record)

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what is queued and end the thread; gives up on a disk that does not answer in time."""
        self._closing.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(self._flush_seconds)
            if self._queue:
                try:
                    self._drain()
                except (OSError, ValueError, TypeError) as error:
                    self._fault(error)

    def _drain(self) -> None:
        lines = []
        while self._queue:
            lines.append(json.dumps(self._queue.popleft(), allow_nan=False) + "\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(lines))

    def _fault(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            logger.warning("%s cannot be written (%s). Training goes on; its steps are not recorded.", self.path, error)
        self._queue.clear()


def last_record(path: Path) -> dict[str, Any] | None:
    """The last complete line of a JSONL file as a dict; None without one, or without a readable file."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        record = _parse(line)
        if record is not None:
            return record
    return None


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The step records of a file, in the order written; works while the run goes on and after a crash.

    A last line that is only half there is skipped, and so is a broken line in the middle; both are logged.

    Raises:
        OutputError: the file cannot be read, or was written by a newer version.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise OutputError(f"{path}: cannot be read ({error.strerror}); name a run's steps.jsonl") from error
    last = len(lines)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        data = _parse(line)
        if data is None and number == last:
            logger.info("%s:%d is half-written and skipped", path, number)
        elif data is None:
            logger.warning("%s:%d is not a JSON object and skipped", path, number)
        else:
            try:
                yield StepRecord.from_json(data)
            except ValueError as error:
                raise OutputError(f"{path}:{number}: {error}") from error


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    return data if isinstance(data, dict) else None


def _repair_end(path: Path) -> None:
    """End the file with a newline: a whole last line gets one, half a line is cut off."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        size = file.seek(0, 2)
        tail_start = max(0, size - _TAIL_BYTES)
        file.seek(tail_start)
        tail = file.read()
        if tail.endswith(b"\n"):
            return
        kept, newline, rest = tail.rpartition(b"\n")
        if _parse(rest) is not None:
            file.write(b"\n")
        else:
            logger.info("%s: a half-written last line is cut off", path)
            file.truncate(tail_start + len(kept) + len(newline))
