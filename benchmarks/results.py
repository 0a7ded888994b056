"""The file of a benchmark's figures: what was run, where, and with which versions, beside them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.facts.environment import describe_environment

__all__ = ["load_average", "result_text", "write_result"]

_LIST_OF_VALUES = re.compile(r"\[\s+([^\[\]{}]*?)\s+\]")


def write_result(
    path: Path, benchmark: str, started: datetime.datetime, figures: Mapping[str, Any], packages: Sequence[str] = ()
) -> None:
    """Write the figures with command, time, machine and versions.

    Args:
        path: JSON file, usually ``benchmarks/results/NAME.json``.
        benchmark: its name.
        started: when it began, in UTC.
        figures: joined at the top level.
        packages: distributions whose versions matter, beside those that every result tells.
    """
    environment = describe_environment().to_dict()
    environment["versions"].update({name: _version(name) for name in packages})
    environment["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS")
    head = {
        "benchmark": benchmark,
        "command": shlex.join(["python", *sys.argv]),
        "started_at": started.isoformat(timespec="seconds"),
        "environment": environment,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(result_text({**head, **figures}), encoding="utf-8")


def result_text(facts: Mapping[str, Any]) -> str:
    """JSON with a line per key, and a list of numbers or names on one line."""
    text = json.dumps(facts, indent=1, allow_nan=False)
    return _LIST_OF_VALUES.sub(lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text) + "\n"


def load_average() -> float | None:
    """Processes that wanted to run, averaged over the last minute; None where the system does not tell."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
