"""Optimizer state that takes the most memory."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import category_bytes, memory_room
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.units import share, size

__all__ = ["optimizer_state"]

_DOMINATES = 0.35
_TIGHT = 0.8
_IN_FLOAT32 = ("adamw_torch", "adamw_torch_fused")


def optimizer_state(case: Case) -> Verdict:
    """More than a third of a CUDA device's tensors at the peak, where four fifths of the memory are taken."""
    held, peak = category_bytes(case, "optimizer_state"), case.account.memory.device_peak_allocated_bytes
    room = memory_room(case)
    if held is None or peak is None or room is None or not case.on_cuda:
        return None
    taken = held / peak
    if taken < _DOMINATES or room.share < _TIGHT:
        return None
    optimizer = case.argument("optim")
    remedies = []
    if optimizer in _IN_FLOAT32:
        saved = held * 3 // 4
        gain = Gain(None, None, saved, None, "moments of 1 byte in place of 4")
        costs = "the moments are rounded to 8 bits, block by block; its authors saw no loss of quality"
        remedies.append(Remedy("keep AdamW's moments in 8 bits", {"train.optim": "adamw_8bit"}, costs, gain))
    if case.settings("model").get("trainable_parameters") == case.settings("model").get("parameters"):
        remedies.append(Remedy("train an adapter in place of all weights", {"adapter.method": "lora"}, "learns less"))
    return Finding(
        rule="optimizer_state",
        title=f"the optimizer's state is {size(held)}, {share(taken)} of the tensors at the peak",
        severity="info",
        confidence="measured",
        evidence=[
            Evidence("optimizer state", held, "bytes", "run.json: memory.categories.optimizer_state"),
            Evidence("tensors at the peak", peak, "bytes", "run.json: memory.device_peak_allocated_bytes"),
            Evidence("memory taken", room.share, "share", room.source),
        ],
        cost=case.cost(held_bytes=held),
        remedies=remedies,
    )
