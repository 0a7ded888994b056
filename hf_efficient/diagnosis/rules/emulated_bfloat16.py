"""Matrix products in bfloat16 on a CPU that has to emulate it."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.precision import faster_products
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Finding, Remedy

__all__ = ["emulated_bfloat16"]

_MUCH_FASTER = 1.5
_MUCH = 0.1


def emulated_bfloat16(case: Case) -> Verdict:
    """The layers multiply in bfloat16, and this CPU's float32 has at least half as much again: a tenth of the loop."""
    if case.first is None:
        return abstains("emulated_bfloat16", NO_STEPS)
    device = case.settings("device")
    if device.get("type") != "cpu" or device.get("supports_bf16") is not False:
        return None
    if case.settings("model").get("matmul_dtype") != "bf16":
        return None
    faster = faster_products(case, "fp32", now="bf16")
    if faster is None:
        return abstains("emulated_bfloat16", "the CPU's peaks are not known")
    if faster.times < _MUCH_FASTER or case.share(faster.seconds) < MATTERS:
        return None
    return Finding(
        rule="emulated_bfloat16",
        title="the layers multiply in bfloat16, which this CPU emulates: float32 is faster here",
        severity="warning" if case.share(faster.seconds) >= _MUCH else "info",
        confidence="likely",
        evidence=faster.evidence,
        cost=case.cost(faster.seconds),
        remedies=[
            Remedy(
                "multiply in float32",
                _overrides(case),
                "weights and activations in float32 are twice as large",
                case.gain(faster.seconds, faster.basis),
            )
        ],
    )


def _overrides(case: Case) -> dict[str, Any]:
    """What of the run is in bfloat16: the mixed precision, the weights, the products on 4-bit weights."""
    found: dict[str, Any] = {"train.bf16": False} if case.argument("bf16") else {}
    if case.settings("model").get("weights_dtype") == "bfloat16":
        found["model.dtype"] = "float32"
    if case.recipe is not None and case.recipe.get("adapter.method") == "qlora":
        found |= {"model.dtype": "float32", "adapter.quantization.compute_dtype": "float32"}
    return found
