"""How much of this machine a process may use, as facts for its records."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import psutil

from hf_efficient.facts.environment import usable_cpus


def machine_facts() -> dict[str, Any]:
    """Facts of topic ``system``; raises nothing, and leaves out what the system does not tell.

    ``hostname``, ``cpus`` (hardware threads of the machine), ``physical_cores``, ``allowed_cpus`` (that it may run on),
    ``usable_cpus`` (those, or fewer where its container has a quota), ``torch_threads`` and ``torch_interop_threads``,
    ``omp_num_threads`` (the variable), ``ranks_here`` (processes of this launch on the machine), ``load_1_minute`` (the
    system's load average when this was asked), ``shared_memory_bytes`` (room for batches of loader workers).
    """
    torch = sys.modules.get("torch")
    facts: dict[str, Any] = {
        "hostname": platform.node() or None,
        "cpus": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "allowed_cpus": len(os.sched_getaffinity(os.getpid())) if hasattr(os, "sched_getaffinity") else None,
        "usable_cpus": usable_cpus(),
        "torch_threads": torch and torch.get_num_threads(),
        "torch_interop_threads": torch and torch.get_num_interop_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "ranks_here": _number(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "load_1_minute": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "shared_memory_bytes": _shared_memory(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _shared_memory() -> int | None:
    try:
        return int(psutil.disk_usage("/dev/shm").total)
    except OSError:
        return None
