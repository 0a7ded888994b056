"""One run at a time in an output directory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_efficient.errors import OutputError

__all__ = ["locked"]

logger = logging.getLogger(__name__)

_LOCK = ".hf_efficient.lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the operating system lets go of it however the process ends.

    Raises:
        OutputError: another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / _LOCK).open("a")
    except OSError as error:
        raise OutputError(f"output_dir: {directory} cannot be written: {error.strerror or error}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OutputError(
                f"output_dir: another run is writing to {directory} right now. "
                "Wait for it, or write another output_dir=..."
            ) from error
        except OSError:
            logger.debug("%s lies on a file system without locks.", directory, exc_info=True)
        yield
