"""What the package itself logs while a command runs, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["messages_on_stderr"]


class _ToStderr(logging.Handler):
    """Writes to what standard error is when the message comes."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


@contextmanager
def messages_on_stderr() -> Iterator[None]:
    """Print the package's messages from INFO upwards during the block; the libraries' are not touched."""
    logger = logging.getLogger("hf_efficient")
    handler, level = _ToStderr(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
