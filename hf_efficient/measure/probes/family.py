"""The processes that belong to this one: its children, which load data, and the other ranks of its launcher."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

__all__ = ["children_of", "cpu_seconds_of", "io_bytes_of", "siblings"]

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_UTIME = 11  # place among the fields behind the name, proc_pid_stat(5): utime, stime, cutime, cstime


def children_of(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The processes that the main thread of this one has started and that live.

    Linux tells them in ten microseconds; elsewhere all processes are looked through, which takes a millisecond.

    Args:
        pid: of the process.
        proc: where Linux tells.
    """
    try:
        return [int(one) for one in (proc / f"{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (OSError, ValueError):
        try:
            return [child.pid for child in psutil.Process(pid).children()]
        except psutil.Error:
            return []


def siblings(environment: Mapping[str, str] = os.environ) -> list[int]:
    """The other ranks on this machine, where a launcher has started several; they are its children as this one is.

    Args:
        environment: of this process.
    """
    if not environment.get("LOCAL_WORLD_SIZE", "1").isdigit() or int(environment.get("LOCAL_WORLD_SIZE", "1")) < 2:
        return []
    return [pid for pid in children_of(os.getppid()) if pid != os.getpid()]


def cpu_seconds_of(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[float, float]:
    """CPU time of these processes themselves, and of those of their children that they have waited for.

    One that has ended tells nothing: its parent has its time by then.

    Args:
        pids: of the processes.
        proc: where Linux tells; elsewhere psutil does.
    """
    own = waited = 0.0
    for pid in pids:
        try:
            fields = (proc / f"{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            user, system, of_children, in_children = (int(one) for one in fields[_UTIME : _UTIME + 4])
        except (OSError, ValueError):
            if proc.exists():
                continue
            with_psutil = _by_psutil(pid)
            own, waited = own + with_psutil[0], waited + with_psutil[1]
            continue
        own += (user + system) / _TICKS_PER_SECOND
        waited += (of_children + in_children) / _TICKS_PER_SECOND
    return own, waited


def io_bytes_of(pids: Iterable[int], proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Bytes that these processes, and the children that they have waited for, had disks read and write.

    None where the system does not tell. (proc_pid_io(5): ``read_bytes``, ``write_bytes``)

    Args:
        pids: of the processes.
        proc: where Linux tells.
    """
    read = written = told = 0
    for pid in pids:
        try:
            lines = (proc / f"{pid}/io").read_text(encoding="ascii").splitlines()
            counters = {name: int(value) for name, _, value in (line.partition(":") for line in lines)}
            read, written = read + counters["read_bytes"], written + counters["write_bytes"]
        except (OSError, ValueError, KeyError):
            continue
        told += 1
    return (read, written) if told else None


def _by_psutil(pid: int) -> tuple[float, float]:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0, 0.0
    return times.user + times.system, times.children_user + times.children_system
