"""How long a thread was ready to run and waited for a core: the kernel's own count."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable

__all__ = ["core_wait_of", "core_wait_seconds"]


def core_wait_seconds() -> float:
    """Of the thread that asks, since it began; 0 where the system does not tell. Takes two microseconds."""
    read = core_wait_of(threading.get_native_id())
    return 0.0 if read is None else read()


@functools.cache
def core_wait_of(thread: int) -> Callable[[], float] | None:
    """Reads the seconds of a thread of this process; None where the system does not tell.

    Args:
        thread: its native id.
    """
    try:  # Documentation/scheduler/sched-stats.rst: ns on a core, ns waiting for one, times it got one
        file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
        _ = int(os.pread(file, 100, 0).split()[1])
    except (OSError, ValueError, IndexError):
        return None

    def read() -> float:
        try:
            return int(os.pread(file, 100, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # the thread has ended
            return 0.0

    return read
