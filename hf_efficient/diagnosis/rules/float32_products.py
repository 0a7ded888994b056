"""Matrix products in float32 where the device is faster in fewer bits."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.precision import faster_products
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Finding, Remedy

__all__ = ["float32_products"]

_MUCH_FASTER = 1.5
_MUCH = 0.1


def float32_products(case: Case) -> Verdict:
    """The layers multiply in float32, and the device's bfloat16 has at least half as much again: a tenth of the loop.

    Where mixed precision was asked for, ``silent_upcasts`` tells why they do.
    """
    if case.first is None:
        return abstains("float32_products", NO_STEPS)
    dtype = case.settings("model").get("matmul_dtype") or case.account.work.dtype
    if dtype is None:
        return abstains("float32_products", "the dtype of the matrix products is not known", "EfficientTrainerMixin")
    asked = case.argument("bf16") or case.argument("fp16")
    if dtype != "fp32" or asked or not case.settings("device").get("supports_bf16"):
        return None
    faster = faster_products(case, "bf16")
    if faster is None:
        return abstains("float32_products", "the device's peaks are not known")
    if faster.times < _MUCH_FASTER:
        return None
    if case.share(faster.seconds) < MATTERS:
        return None
    costs = "bfloat16 keeps 8 of float32's 24 bits; the weights stay in float32"
    gain = case.gain(faster.seconds, faster.basis)
    return Finding(
        rule="float32_products",
        title="the layers multiply in float32, and bfloat16 is faster here",
        severity="warning" if case.share(faster.seconds) >= _MUCH else "info",
        confidence="likely",
        evidence=faster.evidence,
        cost=case.cost(faster.seconds),
        remedies=[Remedy("train in mixed precision", {"train.bf16": True}, costs, gain), *_in_tf32(case)],
    )


def _in_tf32(case: Case) -> list[Remedy]:
    """For who wants to keep float32: on a CUDA device its products may round their factors to 10 bits behind the 1."""
    faster = faster_products(case, "tf32") if case.on_cuda else None
    if faster is None or faster.times < _MUCH_FASTER:
        return []
    costs = "the products' factors keep 11 of float32's 24 bits; everything else stays as it is"
    gain = case.gain(faster.seconds, faster.basis)
    return [Remedy("or let float32 products run in TF32", {"train.tf32": True}, costs, gain)]
