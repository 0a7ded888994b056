"""A process of its own that reads records for another one: readers in, readers that have looked out, both pickled.

Started by ``account/looking.py`` as a program, so that it needs nothing of the one that asks: no fork of a process with
threads or a CUDA context, and no second run of a script that lacks ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import logging
import pickle
import sys
from typing import BinaryIO

from hf_efficient.accounting.run_records import look_at

LoggedLine = tuple[str, int, str]
"""Logger, level and message."""


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LoggedLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.levelno, record.getMessage()))


def main(orders: BinaryIO, answers: BinaryIO) -> None:
    """Answer each reader by what ``look_at`` gives of it and by what was logged, until there are no more."""
    kept = _Keep()
    logging.basicConfig(handlers=[kept], level=logging.INFO)
    while True:
        try:
            reader = pickle.load(orders)
        except EOFError:
            return
        pickle.dump((look_at(reader), kept.lines), answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
        kept.lines = []


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
