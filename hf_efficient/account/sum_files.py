"""The sums of all ranks' steps: one file after the other, or, where they are large, a process per core."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue

from hf_efficient.account.steps import RankSteps, sum_steps
from hf_efficient.errors import OutputError

__all__ = ["sum_files"]

_WORTH_A_PROCESS_BYTES = 64 << 20
"""A third of a second of reading; a process is there after about a tenth."""


def sum_files(files: Mapping[int, Path]) -> list[RankSteps]:
    """The sums of each rank, in the order of the files.

    Args:
        files: step records by rank.

    Raises:
        OutputError: a file cannot be read, holds something else, or was written by a newer version.
    """
    sizes = {rank: path.stat().st_size for rank, path in files.items() if path.exists()}
    workers = min(_cores(), len(files))
    if workers < 2 or sum(sizes.values()) < _WORTH_A_PROCESS_BYTES or not _python():
        return [sum_steps(path, rank) for rank, path in files.items()]
    orders: SimpleQueue[int] = SimpleQueue()
    for rank in sorted(files, key=lambda rank: (rank != 0, -sizes.get(rank, 0))):  # rank 0 takes longest
        orders.put(rank)
    found: dict[int, RankSteps | OutputError] = {}
    threads = [threading.Thread(target=_work_off, args=(orders, files, found)) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [_sums(found.get(rank), path, rank) for rank, path in files.items()]


def _sums(found: RankSteps | OutputError | None, path: Path, rank: int) -> RankSteps:
    if isinstance(found, OutputError):
        raise found
    return sum_steps(path, rank) if found is None else found  # no process could be had, or it was killed


def _work_off(orders: SimpleQueue[int], files: Mapping[int, Path], found: dict[int, RankSteps | OutputError]) -> None:
    command = [sys.executable, "-m", "hf_efficient.account.sum_worker"]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            while True:
                rank = orders.get_nowait()
                pickle.dump((rank, str(files[rank])), process.stdin)
                process.stdin.flush()
                answer, logged = pickle.load(process.stdout)
                for name, level, message in logged:
                    logging.getLogger(name).log(level, message)
                found[rank] = answer
    except (Empty, OSError, EOFError, pickle.PickleError):
        return  # done, or the caller reads what is missing by itself


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _python() -> bool:
    """Whether ``sys.executable`` is an interpreter, and not a program that one is part of."""
    return bool(sys.executable) and Path(sys.executable).stem.startswith(("python", "pypy"))
