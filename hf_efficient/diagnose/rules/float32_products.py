"""Matrix products in float32 where the device is faster in fewer bits."""

from __future__ import annotations

from hf_efficient.diagnose.case import Case
from hf_efficient.diagnose.rule import NO_STEPS, Verdict, abstains
from hf_efficient.hardware.accelerators import accelerator_of_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import flops

__all__ = ["float32_products"]

_MUCH_FASTER = 1.5


def float32_products(case: Case) -> Verdict:
    """The layers multiply in float32, and the device's bfloat16 has at least half as much again."""
    if case.first is None:
        return abstains("float32_products", NO_STEPS)
    dtype = case.settings("model").get("matmul_dtype") or case.account.work.dtype
    if dtype is None:
        return abstains("float32_products", "the dtype of the matrix products is not known", "EfficientTrainerMixin")
    if dtype != "fp32" or not case.settings("device").get("supports_bf16"):
        return None
    slow, fast, source = _peaks(case)
    if slow is None or fast is None:
        return abstains("float32_products", "the device's peaks are not known")
    if fast < _MUCH_FASTER * slow:
        return None
    first = case.first
    computed = float(first.compute_seconds.sum()) * case.loop_seconds / float(first.wall_seconds.sum())
    flop = case.account.work.hardware_flops or case.account.work.model_flops
    ranks = max(1, len(case.account.ranks))
    products = min(computed, flop / ranks / slow) if flop else None
    evidence = [
        Evidence("dtype of the matrix products", "float32", "", "spans.jsonl: settings.model.matmul_dtype"),
        Evidence("peak in float32", slow, "FLOP/s", source),
        Evidence("peak in bfloat16", fast, "FLOP/s", source),
        Evidence("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
    ]
    if products is not None:
        evidence.append(Evidence("time of the products at the float32 peak", products, "seconds", "run.json: work"))
    # Products below their peak are held up by memory, which half of the bytes relieves by half at most.
    saved = (computed - (products or 0)) * 0.25 + (products or computed) * (1 - slow / fast)
    basis = (
        f"products {fast / slow:.1f} times as fast ({flops(fast)}/s in place of {flops(slow)}/s), half of the "
        "rest taken to be memory traffic, which halves"
    )
    return Finding(
        rule="float32_products",
        title="the layers multiply in float32, and bfloat16 is faster here",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(saved),
        remedies=[
            Remedy(
                "train in mixed precision",
                {"train.bf16": True},
                "bfloat16 keeps 8 of float32's 24 bits; the weights stay in float32",
                case.gain(saved, basis),
            )
        ],
    )


def _peaks(case: Case) -> tuple[float | None, float | None, str]:
    measured = case.settings("peaks")
    if measured:
        return measured.get("fp32"), measured.get("bf16"), "spans.jsonl: settings.peaks"
    known = accelerator_of_device(str(case.settings("device").get("name", "")))
    if known is None:
        return None, None, ""
    return known.peak("fp32"), known.peak("bf16"), f"{known.name}: {known.source}"
