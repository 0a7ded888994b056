"""A program, started by ``accounting/run_records.py``, that reads records for another process; readers are pickled."""

import logging
import pickle
import sys


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        lines.append((record.name, record.levelno, record.getMessage()))


if __name__ == "__main__":
    lines: list[tuple[str, int, str]] = []
    logging.basicConfig(handlers=[_Keep()], level=logging.INFO)
    found = [reader.look() for reader in pickle.load(sys.stdin.buffer)]
    pickle.dump((found, lines), sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
