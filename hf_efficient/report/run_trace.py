"""The trace that a run's profiler left beside its records, broken down."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hf_efficient.account.profile_files import PROFILE
from hf_efficient.errors import OutputError
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.trace.breakdown import trace_breakdown
from hf_efficient.units import size

__all__ = ["RunTrace", "read_run_trace"]

_NAME = re.compile(r"trace\.rank(\d+)\.cycle(\d+)(\.pt\.trace)?\.json(\.gz)?")
_LARGEST_BYTES = 32 << 20
"""Of a trace that a page reads, as it lies on the disk: a few seconds' work."""


@dataclass(frozen=True)
class RunTrace:
    """One trace of a run.

    Attributes:
        name: of its file, inside the folder of records.
        path: of its file, for a command line.
        breakdown: None where it was not read.
        why: it was not.
        others: names of the run's other traces.
    """

    name: str
    path: str
    breakdown: TraceBreakdown | None
    why: str
    others: list[str]


def read_run_trace(directory: Path) -> RunTrace | None:
    """The first trace of the first rank; None where the run left none.

    Args:
        directory: the ``efficiency`` folder of the run.
    """
    found = [(match, path) for path in directory.glob(f"{PROFILE}/trace.*") if (match := _NAME.fullmatch(path.name))]
    paths = [path for _, path in sorted(found, key=lambda one: (int(one[0][1]), int(one[0][2])))]
    if not paths:
        return None
    names = [f"{PROFILE}/{path.name}" for path in paths]
    breakdown, why = _read(paths[0])
    return RunTrace(names[0], str(paths[0]), breakdown, why, names[1:])


def _read(path: Path) -> tuple[TraceBreakdown | None, str]:
    try:
        held = path.stat().st_size
        if held > _LARGEST_BYTES:
            return None, f"it holds {size(held)}, which is more than a page reads"
        return trace_breakdown(path), ""
    except OutputError as error:  # the rest of the page can do without
        return None, str(error)
    except OSError as error:
        return None, f"{path}: cannot be read: {error.strerror}"
