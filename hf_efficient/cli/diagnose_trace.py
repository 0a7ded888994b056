"""``hf-efficient diagnose TRACE.json.gz``: where the time of a trace went, and what to change."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from hf_efficient.diagnosis.trace_findings import findings_of_trace
from hf_efficient.report.diagnosis_console import finding_renderables
from hf_efficient.report.diagnosis_words import OF_THE_TRACE
from hf_efficient.report.trace_console import trace_renderables
from hf_efficient.trace.breakdown import trace_breakdown

__all__ = ["diagnose_trace"]


def diagnose_trace(path: Path, as_json: bool) -> None:
    """Print the breakdown of a Chrome trace that torch's profiler wrote, and below it what it tells to change.

    Args:
        path: of the trace, plain or gzipped.
        as_json: print the record as strict JSON instead, with ``findings`` beside its own keys.

    Raises:
        OutputError: the file cannot be read, or is no Chrome trace.
    """
    found = trace_breakdown(path)
    findings = findings_of_trace(found)
    if as_json:
        told = {**dataclasses.asdict(found), "findings": [dataclasses.asdict(one) for one in findings]}
        print(json.dumps(told, indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    for part in [
        *trace_renderables(found),
        *([""] if findings else []),
        *finding_renderables(findings, of=OF_THE_TRACE),
    ]:
        console.print(part)
