"""A micro-batch too large for the memory beside it: the allocator frees its cache to make room, again and again."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import memory_room
from hf_efficient.diagnosis.retries import retries_after_warm_up, retry_seconds
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.diagnosis.smaller_micro_batch import smaller_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["large_micro_batch"]

_FULL = 0.9


def large_micro_batch(case: Case) -> Verdict:
    """Retries after warm-up while nine tenths of the device are taken: half of the rows would do without.

    With room left, retries are the fault of torn memory (``fragmentation``).
    """
    room, rows = memory_room(case), int(case.argument("per_device_train_batch_size") or 1)
    retries = retries_after_warm_up(case)
    if not case.on_cuda or room is None or rows < 2 or not retries or room.share < _FULL:
        return None
    fewer = smaller_micro_batch(case)
    if fewer is None:
        return None
    seconds = retry_seconds(case)
    basis = "steps with a retry as long as those without; what smaller kernels cost is not counted"
    gain = None if seconds is None else case.gain(seconds, basis)
    return Finding(
        rule="large_micro_batch",
        title=f"micro-batches of {rows} rows fill the memory: the allocator had to free its cache {retries} times",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
            Evidence("memory taken at the peak", room.share, "share", room.source),
            Evidence("rows of a micro-batch", rows, "count", "spans.jsonl: settings.arguments"),
        ],
        cost=case.cost(seconds),
        remedies=[Remedy("take fewer rows into a micro-batch", fewer, "more and smaller kernels", gain)],
        explains=["fragmentation", "near_out_of_memory"],
    )
