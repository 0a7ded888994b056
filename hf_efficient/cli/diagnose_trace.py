"""``hf-efficient diagnose TRACE.json.gz``: where the time of a trace went."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from hf_efficient.report.trace_console import trace_renderables
from hf_efficient.trace.breakdown import trace_breakdown

__all__ = ["diagnose_trace"]


def diagnose_trace(path: Path, as_json: bool) -> None:
    """Print the breakdown of a Chrome trace that torch's profiler wrote.

    Args:
        path: of the trace, plain or gzipped.
        as_json: print the record as strict JSON instead.

    Raises:
        OutputError: the file cannot be read, or is no Chrome trace.
    """
    found = trace_breakdown(path)
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    for part in trace_renderables(found):
        console.print(part)
