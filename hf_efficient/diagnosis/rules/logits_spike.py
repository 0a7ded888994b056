"""Logits, a number per position and word of the vocabulary, that make the peak."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import category_bytes, memory_room
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.diagnosis.smaller_micro_batch import smaller_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.units import share, size

__all__ = ["logits_spike"]

_DOMINATE = 0.3
_TIGHT = 0.7


def logits_spike(case: Case) -> Verdict:
    """Three tenths of a CUDA device's peak or more; a warning where seven tenths of the memory are taken."""
    held, peak = category_bytes(case, "logits"), case.account.memory.device_peak_allocated_bytes
    room = memory_room(case)
    if held is None or peak is None or room is None or not case.on_cuda or held < _DOMINATE * peak:
        return None
    vocabulary = case.settings("model").get("vocabulary_size")
    evidence = [
        Evidence("logits", held, "bytes", "run.json: memory.categories.logits"),
        Evidence("tensors at the peak", peak, "bytes", "run.json: memory.device_peak_allocated_bytes"),
        Evidence("memory taken", room.share, "share", room.source),
    ]
    if vocabulary:
        evidence.append(Evidence("vocabulary", int(vocabulary), "count", "spans.jsonl: settings.model"))
    return Finding(
        rule="logits_spike",
        title=f"the logits are {size(held)}, {share(held / peak)} of the tensors at the peak",
        severity="warning" if room.share >= _TIGHT else "info",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(held_bytes=held),
        remedies=_remedies(case, held),
    )


def _remedies(case: Case, held: int) -> list[Remedy]:
    found = []
    is_sft = case.argument("loss_type") == "nll" and case.argument("packing") is not None
    if is_sft and not case.argument("label_smoothing_factor") and not case.argument("use_liger_kernel"):
        gain = Gain(None, None, held, None, "logits are computed and scored tile by tile, never held whole")
        costs = "the LM head is computed twice"
        found.append(Remedy("score the logits in tiles", {"train.loss_type": "chunked_nll"}, costs, gain))
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        gain = Gain(None, None, held // 2, None, "half of the positions of a micro-batch, or fewer")
        found.append(Remedy("take fewer rows into a micro-batch", fewer, "smaller kernels", gain))
    return found
