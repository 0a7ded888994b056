"""Memory that the allocator holds and cannot use, and the flushes of its cache that this takes."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.retries import retries_after_warm_up, retry_seconds
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import size

__all__ = ["fragmentation"]

_TOO_MUCH = 0.3
_LEAST_BYTES = 1 << 30


def fragmentation(case: Case) -> Verdict:
    """Retries after warm-up, or a peak of what is reserved that is 30% and 1 GiB above that of the tensors.

    A retry frees the whole cache, which waits for the device, and every allocation after it asks the driver again.
    """
    memory, first = case.account.memory, case.first
    reserved, allocated = memory.device_peak_reserved_bytes, memory.device_peak_allocated_bytes
    if first is None or reserved is None or allocated is None:
        return None  # no CUDA device
    gap, retries = reserved - allocated, retries_after_warm_up(case)
    torn = gap >= _LEAST_BYTES and gap > _TOO_MUCH * reserved
    if not retries and not torn:
        return None
    evidence = [
        Evidence("reserved at the peak", reserved, "bytes", "run.json: memory.device_peak_reserved_bytes"),
        Evidence("tensors at the peak", allocated, "bytes", "run.json: memory.device_peak_allocated_bytes"),
        Evidence("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
    ]
    seconds = retry_seconds(case) if retries else None
    if seconds is not None:
        evidence.append(Evidence("steps with a retry took longer by", seconds, "seconds", "steps.jsonl: wall_seconds"))
    told = f"the allocator had to free its cache {retries} times" if retries else f"{size(gap)} are reserved and unused"
    remedies = [
        Remedy(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment of the run",
            gain=None if seconds is None else case.gain(seconds, "steps with a retry as long as those without"),
        )
    ]
    if _sizes_differ(case):
        overrides = {"train.train_sampling_strategy": "group_by_length"}
        remedies.append(Remedy("put examples of like length into a batch", overrides, "another order of examples"))
    return Finding(
        rule="fragmentation",
        title=told,
        severity="warning" if retries else "info",
        confidence="measured" if retries else "likely",
        evidence=evidence,
        cost=case.cost(seconds, gap),
        remedies=remedies,
    )


def _sizes_differ(case: Case) -> bool:
    """Batches of many sizes tear the memory, where they are neither packed nor grouped already."""
    known = case.argument("train_sampling_strategy") is not None
    return known and case.can_be_grouped and not case.argument("packing")
