"""Batches that reach the GPU slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share, short_seconds, size

__all__ = ["host_to_device_copy"]

_TOO_MUCH = 0.05
_PINNED_BYTES_PER_SECOND = 12e9
"""What a 16-lane link of the third generation carries from page-locked memory; newer ones carry more."""
_CALL_SECONDS = 1e-5
_MANY = 16
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True)
class _Copies:
    """Of a step: host seconds, bytes and tensors; whether their memory is page-locked."""

    seconds: float
    bytes: float
    tensors: float
    pinned: bool

    @property
    def least_seconds(self) -> float:
        """From page-locked memory, one call per tensor."""
        return self.bytes / _PINNED_BYTES_PER_SECOND + self.tensors * _CALL_SECONDS


def host_to_device_copy(case: Case) -> Verdict:
    """On a GPU, a twentieth of the loop or more goes into handing it the batches: pageable, in pieces, or blocking."""
    if case.first is None:
        return abstains("host_to_device_copy", NO_STEPS)
    if not case.on_cuda:
        return None
    copies = _copies(case)
    if copies is None:
        why = "what the batches hold is not recorded"
        return abstains("host_to_device_copy", why, "EfficientTrainerMixin; efficiency.profile.trace shows every copy")
    steps = case.account.steps.count
    if case.share(copies.seconds * steps) < _TOO_MUCH:
        return None
    saved = max(0.0, copies.seconds - copies.least_seconds) * steps
    in_pieces = copies.tensors >= _MANY and copies.bytes < _SMALL_BYTES * copies.tensors
    kind = "in many small pieces" if in_pieces else "from pinned memory" if copies.pinned else "from pageable memory"
    return Finding(
        rule="host_to_device_copy",
        title=(
            f"{share(case.share(copies.seconds * steps))} of the training loop hands batches to the GPU {kind}: "
            f"{size(round(copies.bytes))} in {short_seconds(copies.seconds)} per step"
        ),
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence(
                "host time of a step's copies",
                copies.seconds,
                "seconds",
                "steps.jsonl: host_to_device, and data_wait without the loader's",
            ),
            Evidence("bytes of a step", copies.bytes, "bytes", "steps.jsonl: loader.bytes"),
            Evidence("tensors of a step", copies.tensors, "count", "spans.jsonl: loader.first_batch"),
            Evidence("page-locked", "yes" if copies.pinned else "no", "", "spans.jsonl: loader.first_batch"),
        ],
        cost=case.cost(saved),
        remedies=_remedies(case, copies, in_pieces, saved),
    )


def _copies(case: Case) -> _Copies | None:
    first, batch = case.first, case.facts.get("loader", {}).get("first_batch")
    if first is None or not batch or "bytes" not in first.loader:
        return None
    loader = {name: np.nan_to_num(first.loader[name]) for name in ("wait_seconds", "start_seconds", "end_seconds")}
    around = np.maximum(0.0, first.phase("data_wait") - sum(loader.values()))
    seconds = (first.phase("host_to_device") + around)[first.steady]
    return _Copies(
        seconds=float(seconds.mean()),
        bytes=float(np.nanmean(first.loader["bytes"][first.steady])),
        tensors=len(batch) * float(np.nanmean(first.loader["batches"][first.steady])),
        pinned=all(bool(tensor.get("pinned")) for tensor in batch.values()),
    )


def _remedies(case: Case, copies: _Copies, in_pieces: bool, saved: float) -> list[Remedy]:
    gain = case.gain(saved, "copies from pinned memory at 12 GB/s, and 10 µs for each tensor")
    if in_pieces:
        return [Remedy("put what a batch holds into fewer, larger tensors in the collator", gain=None)]
    overrides: dict[str, Any] = {"train.accelerator_config": {"non_blocking": True}}
    if copies.pinned:
        return [Remedy("copy without waiting", overrides, gain=gain)]
    overrides["train.dataloader_pin_memory"] = True
    return [
        Remedy("load into pinned memory, and copy without waiting", overrides, "memory that cannot be swapped", gain)
    ]
