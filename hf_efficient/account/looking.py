"""Many files read at once: one after the other, or, where there is much to read, by a process per core."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from hf_efficient.account.steps import StepsReader
from hf_efficient.account.system import SystemReader
from hf_efficient.account.tail import Replaced
from hf_efficient.errors import OutputError

__all__ = ["Looked", "Reader", "look_at", "look_at_all"]

_WORTH_A_PROCESS_BYTES = 64 << 20
"""A third of a second of reading; a process is there after about a tenth."""

Reader = StepsReader | SystemReader
Looked = StepsReader | SystemReader | Replaced | OutputError
"""A reader that has seen what is new, or why it has not."""


def look_at(reader: Reader) -> Looked:
    """Let it take in what came since its last look."""
    try:
        reader.look()
    except (Replaced, OutputError) as fault:
        return fault
    return reader


def look_at_all(readers: Sequence[Reader]) -> list[Looked]:
    """Let each of them take in what came since its last look.

    Returns:
        Of each the reader, which may be another object than the one given, or why it could not.
    """
    unread = [reader.tail.unread_bytes for reader in readers]
    workers = min(_cores(), sum(size > 0 for size in unread))
    if workers < 2 or sum(unread) < _WORTH_A_PROCESS_BYTES or not _is_python():
        return [look_at(reader) for reader in readers]
    orders: SimpleQueue[int] = SimpleQueue()
    for index in sorted(range(len(readers)), key=lambda index: (readers[index].sums.rank != 0, -unread[index])):
        orders.put(index)  # rank 0, whose records are read for more, takes longest
    found: dict[int, Looked] = {}
    threads = [threading.Thread(target=_work_off, args=(orders, readers, found)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What is missing now no process could be had for, or it was killed.
    return [found[index] if index in found else look_at(reader) for index, reader in enumerate(readers)]


def _work_off(orders: SimpleQueue[int], readers: Sequence[Reader], found: dict[int, Looked]) -> None:
    command = [sys.executable, "-m", "hf_efficient.account.look_worker"]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while True:
                index = orders.get_nowait()
                pickle.dump(readers[index], process.stdin)
                process.stdin.flush()
                answer, logged = pickle.load(process.stdout)
                for name, level, message in logged:
                    logging.getLogger(name).log(level, message)
                found[index] = answer
    except (Empty, OSError, EOFError, pickle.PickleError):
        return


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_python() -> bool:
    """Whether ``sys.executable`` is an interpreter, and not a program that one is part of."""
    return bool(sys.executable) and Path(sys.executable).stem.startswith(("python", "pypy"))
