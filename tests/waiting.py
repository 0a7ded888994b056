"""Waiting for another thread."""

import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["wait_for", "wait_for_line"]


def wait_for(there: Callable[[], bool], seconds: float = 20) -> None:
    """Until it is there; an error where it takes too long."""
    limit = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.005)


def wait_for_line(path: Path, lines: int = 1, seconds: float = 20) -> None:
    """Until a file holds so many whole lines."""
    wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= lines, seconds)
