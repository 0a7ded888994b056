"""An optimizer that updates the weights operator by operator, where one fused kernel does."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["optimizer_kernel"]

_NOT_FUSED = ("Adam", "AdamW")
_FEWER_PASSES = 2 / 3
"""Of the optimizer's time: AdamW's operators one after another read or write 21 tensors (decay 2, first moment 3,
second moment 5, its root, division and epsilon 6, update 4, and the gradient), one kernel 7. Clipping the gradients,
which is in the same phase, stays."""


def optimizer_kernel(case: Case) -> Verdict:
    """torch's AdamW without ``fused``, in a twentieth of the loop or more."""
    held, first = case.settings("optimizer"), case.first
    if first is None:
        return abstains("optimizer_kernel", NO_STEPS)
    if held.get("class") not in _NOT_FUSED or held.get("fused"):
        return None
    if case.settings("device").get("type") not in ("cpu", "cuda"):
        return None
    spent = case.phase_seconds("optimizer")
    device = first.device_seconds.get("optimizer")
    source = "steps.jsonl: phase_seconds.optimizer"
    if device is not None:
        spent = float(device[device == device].sum()) * case.loop_seconds / float(first.wall_seconds.sum())
        source = "steps.jsonl: device_seconds.optimizer"
    saved = _FEWER_PASSES * spent
    if case.share(saved) < MATTERS:
        return None
    basis = "a fused step reads and writes 7 tensors for each weight where the operators one by one do 21"
    return Finding(
        rule="optimizer_kernel",
        title=f"the optimizer takes {share(case.share(spent))} of the loop, operator by operator: it is not fused",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence("time in the optimizer", spent, "seconds", source),
            Evidence("optimizer", str(held["class"]), "", "spans.jsonl: settings.optimizer"),
            Evidence("train.optim", str(case.argument("optim", "not known")), "", "spans.jsonl: settings.arguments"),
        ],
        cost=case.cost(spent),
        remedies=[
            Remedy("take the fused AdamW", {"train.optim": "adamw_torch_fused"}, "", case.gain(saved, basis)),
        ],
    )
