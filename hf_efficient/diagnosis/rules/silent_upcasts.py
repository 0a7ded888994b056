"""Float32 products in a run that asked for 16 bits."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.kernel_precision import float32_products_of
from hf_efficient.diagnosis.precision import faster_products, peak_of
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.traced import traced_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.units import share

__all__ = ["silent_upcasts"]

_TRACE = "profile/trace.rank0"


def silent_upcasts(case: Case) -> Verdict:
    """The layers' own dtype tells it (4-bit layers multiply in their compute dtype); else the kernels of a trace."""
    if case.first is None:
        return abstains("silent_upcasts", NO_STEPS)
    if not case.argument("bf16") and not case.argument("fp16"):
        return None
    if case.settings("device").get("type") == "cpu" and not case.settings("device").get("supports_bf16"):
        return None  # float32 is what is fast there
    if case.settings("model").get("matmul_dtype") == "fp32":
        return _of_layers(case)
    if not case.on_cuda:
        return None
    device = traced_device(case)
    if device is None:
        why = "the dtype of the kernels is not known"
        return abstains("silent_upcasts", why, "efficiency.profile.trace")
    return _of_kernels(case, device)


def _of_layers(case: Case) -> Verdict:
    asked = "bf16" if case.argument("bf16") else "fp16"
    faster = faster_products(case, "bf16")
    seconds = 0.0 if faster is None else faster.seconds
    overrides: dict[str, Any] = {}
    what = "load the 4-bit layers with bnb_4bit_compute_dtype=torch.bfloat16"
    if case.recipe is not None and case.recipe.get("adapter.method") == "qlora":
        overrides = {"adapter.quantization.compute_dtype": "bfloat16"}
        what = "let the 4-bit layers multiply in bfloat16"
    gain = None if faster is None else case.gain(seconds, faster.basis)
    return Finding(
        rule="silent_upcasts",
        title=f"train.{asked} is on, and yet the layers multiply in float32",
        severity="warning",
        confidence="measured",
        evidence=[Evidence(f"train.{asked}", "true", "", "spans.jsonl: settings.arguments"), *_known(faster)],
        cost=case.cost(None if faster is None else seconds),
        remedies=[Remedy(what, overrides, "", gain)],
        explains=["float32_products"],
    )


def _known(faster: Any) -> list[Evidence]:
    if faster is None:
        return [Evidence("dtype of the matrix products", "float32", "", "spans.jsonl: settings.model.matmul_dtype")]
    return list(faster.evidence)


def _of_kernels(case: Case, device: DeviceBreakdown) -> Finding | None:
    upcast = float32_products_of(device)
    taken = sum(one.seconds for one in upcast) / device.busy.window_seconds if device.busy.window_seconds else 0.0
    if taken < MATTERS:
        return None
    slow, fast = peak_of(case, "fp32"), peak_of(case, "bf16")
    saved = taken * (1 - slow[0] / fast[0] if slow is not None and fast is not None else 0.5)
    evidence = [
        Evidence(
            f"{one.name}, by {one.operator or 'an unknown operator'}", one.seconds, "seconds", "profile/trace.rank0"
        )
        for one in upcast[:3]
    ]
    basis = "their part of the traced time, in 16 bits at the ratio of the peaks"
    what = "find the modules that are kept in float32 (an LM head, an adapter, a norm before a product), and cast them"
    return Finding(
        rule="silent_upcasts",
        title=f"{share(taken)} of the device's time are float32 products, though 16 bits were asked for",
        severity="warning",
        confidence="likely",
        evidence=[Evidence("float32 products, of the traced time", taken, "share", _TRACE), *evidence],
        cost=case.cost(taken * case.loop_seconds),
        remedies=[Remedy(what, gain=case.gain(saved * case.loop_seconds, basis))],
    )
