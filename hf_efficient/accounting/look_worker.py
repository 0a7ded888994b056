"""A program, started by ``accounting/run_records.py``, that reads records for another process; readers are pickled."""

from __future__ import annotations

import logging
import pickle
import sys
from typing import BinaryIO


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.levelno, record.getMessage()))


def main(readers: BinaryIO, answer: BinaryIO) -> None:
    """Let each reader look; answer with them, and with what was logged."""
    kept = _Keep()
    logging.basicConfig(handlers=[kept], level=logging.INFO)
    found = [reader.look() for reader in pickle.load(readers)]
    pickle.dump((found, kept.lines), answer, protocol=pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
