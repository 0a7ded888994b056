"""A process of its own that sums files of step records for another one: names in, sums out, both pickled.

Started by ``account/sum_files.py`` as a program, so that it needs nothing of the one that asks: no fork of a process
with threads or a CUDA context, and no second run of a script that lacks ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import logging
import pickle
import sys
from pathlib import Path
from typing import BinaryIO

from hf_efficient.account.steps import RankSteps, sum_steps
from hf_efficient.errors import OutputError

__all__ = ["LoggedLine", "main"]

LoggedLine = tuple[str, int, str]
"""Logger, level and message."""


class _Keep(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[LoggedLine] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.levelno, record.getMessage()))


def main(orders: BinaryIO, answers: BinaryIO) -> None:
    """Answer each ``(rank, path)`` by ``(sums or error, what was logged)``, until there are no more."""
    kept = _Keep()
    logging.basicConfig(handlers=[kept], level=logging.INFO)
    while True:
        try:
            rank, path = pickle.load(orders)
        except EOFError:
            return
        answer: RankSteps | OutputError
        try:
            answer = sum_steps(Path(path), rank)
        except OutputError as error:
            answer = error
        pickle.dump((answer, kept.lines), answers, protocol=pickle.HIGHEST_PROTOCOL)
        answers.flush()
        kept.lines = []


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
