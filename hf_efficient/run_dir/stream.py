"""Append-only JSON lines, written by a thread of their own: training never waits for a disk.

The file of a process's spans: appended like the steps, with a sign of life that is written over in place.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_efficient.run_dir.reading import TAIL_BYTES, last_record, parse_line

logger = logging.getLogger(__name__)


class FaultLatch:
    """Tells one fault of several files that fail together, since one warning is enough.

    Attributes:
        told: whether it has.
    """

    def __init__(self) -> None:
        self.told = False
        self._lock = threading.Lock()

    def tell(self, path: Path, error: Exception) -> None:
        """Warn that this file cannot be written, unless another one was told of before."""
        with self._lock:
            first, self.told = not self.told, True
        if first:
            logger.warning("%s cannot be written (%s). Training goes on; its steps are not recorded.", path, error)


def strict_json(record: Mapping[str, Any]) -> bytes:
    """One line of JSON.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(record, allow_nan=False).encode()


class JsonlStream:
    """Appends records to a file, at least once per ``flush_seconds``.

    ``write`` only queues. The file is opened anew for every batch of lines, so a folder that vanished is
    noticed rather than written to in vain. A fault (disk full, read-only, vanished) ends the stream with one
    warning and never reaches the caller. What a killed process had queued in its last ``flush_seconds`` is
    lost.
    """

    def __init__(
        self,
        path: Path,
        flush_seconds: float = 1.0,
        latch: FaultLatch | None = None,
        encode: Callable[[Any], bytes] = strict_json,
    ) -> None:
        """Create the folder, mend the end of a file that a crash left half-written, start the thread.

        Args:
            path: of the file.
            flush_seconds: between two looks at the queue.
            latch: shared with the other files of the run.
            encode: makes a line, without its end, of what ``write`` was given; called by the thread that writes.
        """
        self.path = path
        self._queue: deque[Any] = deque()
        self._encode = encode
        self._closing, self._nudge = threading.Event(), threading.Event()
        self._broken = False
        self._flush_seconds = flush_seconds
        self._latch = latch or FaultLatch()
        self._thread: threading.Thread | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _repair_end(path)
        except OSError as error:
            self._fault(error)
        self.wake()

    def write(self, record: Any) -> None:
        """Queue one record (a JSON object, unless ``encode`` says otherwise); returns at once, raises nothing."""
        if not self._broken:
            self._queue.append(record)

    def wake(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is not None or self._broken:
            return
        self._closing, self._nudge = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, name=f"write {self.path.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is going down
            self._fault(error)
            return
        self._thread = thread

    def write_soon(self) -> None:
        """Do not wait for the next round with what is queued; returns at once."""
        self._nudge.set()

    def move_to(self, path: Path) -> None:
        """Go on in another file of this file system, to which what was written goes, over what lies there."""
        awake = self._thread is not None
        self.close()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self.path.replace(path)
        except OSError as error:
            self._fault(error)
            return
        self.path = path
        if awake:
            self.wake()

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what is queued and end the thread; gives up on a disk that does not answer in time."""
        thread, self._thread = self._thread, None
        if thread is None:
            self._write_batch(last=True)
            return
        self._closing.set()
        self._nudge.set()
        thread.join(timeout_seconds)

    def _run(self) -> None:
        closing, nudge, last = self._closing, self._nudge, False
        while not last:
            nudge.wait(self._flush_seconds)
            nudge.clear()  # before the look at the queue and at the end, so that none that comes now is lost
            last = closing.is_set()
            self._write_batch(last)

    def _write_batch(self, last: bool) -> None:
        if self._broken:
            return
        try:
            self._drain(last)
        except Exception as error:  # noqa: BLE001  whatever it is, the training must not notice
            self._fault(error)

    def _drain(self, last: bool) -> None:
        if self._queue:
            lines = self._queued()
            with self.path.open("ab") as file:
                file.write(lines)

    def _queued(self) -> bytes:
        lines = []
        while self._queue:
            lines.append(self._encode(self._queue.popleft()) + b"\n")
        return b"".join(lines)

    def _fault(self, error: Exception) -> None:
        self._broken = True
        self._latch.tell(self.path, error)
        self._queue.clear()


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


SignOfLife = Callable[[], tuple[object, dict[str, Any]]]
"""What is under way, and a token that changes when a record of it was written."""


class SpanStream(JsonlStream):
    """Ends its file, while its thread runs, with a line that says until when the process has lived.

    That line is taken anew in every round and lies behind the records; the next round writes over it, so that it
    costs no room however long a run takes. It is what remains to be known of a span that a kill leaves open.
    """

    def __init__(
        self, path: Path, sign_of_life: SignOfLife, latch: FaultLatch | None = None, flush_seconds: float = 1.0
    ) -> None:
        """Open the file, and read which processes wrote to it before.

        Args:
            path: ``spans.jsonl``.
            sign_of_life: called by the writing thread.
            latch: shared with the other files of the run.
            flush_seconds: length of a round.
        """
        previous = last_record(path, "process")
        self.process = 0 if previous is None else int(previous["process"]) + 1
        self._sign_of_life = sign_of_life
        self._end: int | None = None
        self._length = 0
        self._later: deque[Callable[[], dict[str, Any]]] = deque()
        super().__init__(path, flush_seconds, latch)

    def write_later(self, make: Callable[[], dict[str, Any]]) -> None:
        """Queue a record that takes a while to make: the thread that writes makes it, for the round after."""
        self._later.append(make)

    def _drain(self, last: bool) -> None:
        if last:
            self._make_later()
            self._append(last)
        else:
            self._append(last)
            self._make_later()

    def _make_later(self) -> None:
        while self._later:
            self._queue.append(self._later.popleft()())

    def _append(self, last: bool) -> None:
        if last and not self._queue:
            return
        if self._end is None:
            with self.path.open("ab") as file:
                self._end = self._length = file.seek(0, 2)
        token, sign = self._sign_of_life()
        lines = self._queued()
        if self._sign_of_life()[0] != token:  # a record of it may be among the lines: take it again
            sign = self._sign_of_life()[1]
        text = lines if last else lines + (json.dumps(sign, allow_nan=False) + "\n").encode()
        missing = self._length - self._end - len(text)
        if missing > 0:  # cover the old line to its end, so that no kill can leave a piece of it
            text = text[:-1] + b" " * missing + b"\n"
        with self.path.open("rb+") as file:
            file.seek(self._end)
            file.write(text)
        self._length = self._end + len(text)
        self._end += len(lines) if not last else len(text)
