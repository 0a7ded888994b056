"""A peak so near the device's memory that a longer batch, or an evaluation, ends the run."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import memory_room
from hf_efficient.diagnosis.recompute import checkpointing_override
from hf_efficient.diagnosis.rule import Verdict, abstains
from hf_efficient.diagnosis.smaller_micro_batch import smaller_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share, size

__all__ = ["near_out_of_memory"]

_NEAR = 0.95
_NEAR_ON_A_HOST = 0.97
_TENSORS = 0.85


def near_out_of_memory(case: Case) -> Verdict:
    """95% of what tensors may take of a CUDA device were reserved; on a CPU, 97% of the host's memory were taken.

    What is reserved beyond the tensors' own peak is cache, which the allocator frees before it gives up: on batches of
    many sizes it fills the device of a healthy run. So the tensors must have taken 85% themselves.
    """
    room = memory_room(case)
    if room is None:
        return abstains("near_out_of_memory", "the device's memory, or its peak, is not known") if case.first else None
    if room.share < (_NEAR if case.on_cuda else _NEAR_ON_A_HOST):
        return None
    tensors = case.account.memory.device_peak_allocated_bytes
    if case.on_cuda and tensors is not None and tensors < _TENSORS * room.device_bytes:
        return None
    evidence = [
        Evidence("memory taken at the peak", room.held_bytes, "bytes", room.source),
        Evidence("memory of the device", room.device_bytes, "bytes", "spans.jsonl: settings.device.memory_bytes"),
        Evidence("share", room.share, "share", room.source),
    ]
    longest = case.account.sequences.longest_tokens
    if longest is not None:
        evidence.append(Evidence("longest document so far", longest, "tokens", "run.json: sequences.longest_tokens"))
    return Finding(
        rule="near_out_of_memory",
        title=f"{share(room.share)} of the memory are taken: {size(room.idle_bytes)} are left for a longer batch",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(held_bytes=room.held_bytes),
        remedies=_remedies(case),
        explains=["fragmentation"],
    )


def _remedies(case: Case) -> list[Remedy]:
    """What keeps the training what it is, the least costly first."""
    found = []
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        found.append(Remedy("take fewer rows into a micro-batch", fewer, "more and smaller kernels"))
    if case.settings("model").get("activation_checkpointing") is False:
        on = checkpointing_override(case, True)
        found.append(Remedy("checkpoint the activations", on, "the forward is computed twice"))
    found.append(Remedy("let the plan rehearse what gives room: hf-efficient plan RECIPE --advise"))
    return found
