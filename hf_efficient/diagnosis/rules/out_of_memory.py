"""A run that ended because the device had no memory left."""

from __future__ import annotations

import re

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.recompute import checkpointing_override
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.diagnosis.smaller_micro_batch import smaller_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["out_of_memory"]

_TOLD = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|DefaultCPUAllocator", re.IGNORECASE)


def out_of_memory(case: Case) -> Verdict:
    """The exception that ended it says so; the remedy is the plan's, which rehearses every change that could fit."""
    account = case.account
    if account.ended != "error" or not _TOLD.search(account.error or ""):
        return None
    evidence = [
        Evidence("what ended the run", account.error or "", "", "run.json: error"),
        Evidence("optimizer steps before", account.steps.count, "count", "run.json: steps.count"),
    ]
    memory, total = account.memory, case.settings("device").get("memory_bytes")
    if memory.device_peak_allocated_bytes is not None:
        source = "run.json: memory.device_peak_allocated_bytes"
        evidence.append(Evidence("peak of the tensors", memory.device_peak_allocated_bytes, "bytes", source))
    if total:
        evidence.append(Evidence("memory of the device", int(total), "bytes", "spans.jsonl: settings.device"))
    remedies = [Remedy("let the plan rehearse what would fit: hf-efficient plan RECIPE --advise")]
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        remedies.append(Remedy("take fewer rows into a micro-batch", fewer, "smaller kernels"))
    if case.settings("model").get("activation_checkpointing") is False:
        on = checkpointing_override(case, True)
        remedies.append(Remedy("checkpoint the activations", on, "the forward is computed twice"))
    return Finding("out_of_memory", "the run ran out of memory", "critical", "measured", evidence, remedies=remedies)
