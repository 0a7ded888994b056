"""What matrix products in fewer bits would save."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.diagnosis.case import Case
from hf_efficient.hardware.accelerators import Dtype, accelerator_of_device
from hf_efficient.records.findings import Evidence
from hf_efficient.units import flops

__all__ = ["FasterProducts", "faster_products", "peak_of"]

_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "tf32": "TF32"}


@dataclass(frozen=True)
class FasterProducts:
    """Products in another dtype than the run's.

    Attributes:
        times: how many times its peak is that of the run's.
        seconds: saved over the run.
        basis: how that was told.
        evidence: what it rests on.
    """

    times: float
    seconds: float
    basis: str
    evidence: list[Evidence]


def peak_of(case: Case, dtype: Dtype) -> tuple[float, str] | None:
    """FLOP/s and where it is told: what was measured on this CPU, or what the accelerator's vendor states."""
    measured = case.settings("peaks").get(dtype)
    if measured:
        return float(measured), "spans.jsonl: settings.peaks"
    known = accelerator_of_device(str(case.settings("device").get("name", "")))
    stated = known.peak(dtype) if known is not None else None
    return (stated, f"{known.name}: {known.source}") if known is not None and stated else None


def faster_products(case: Case, dtype: Dtype, now: Dtype = "fp32") -> FasterProducts | None:
    """Of a run whose layers multiply in ``now``; None where a peak or the steps are not known.

    The products take at least their FLOPs at the peak. On a CUDA device the rest of forward and backward is taken to be
    half memory traffic, which 16 bits halve. TF32 reads and writes float32: it saves in the products alone. So does a
    CPU, where casting costs what is saved elsewhere: a Llama of 64 wide with a tenth of its time in products trained
    30% slower in bfloat16 (two cores of an AMD EPYC with AVX512-BF16, torch 2.13).

    Hand-worked, on CUDA: 8 s of forward and backward, 2 s of them products at the peak, four times as fast in bfloat16:
    1.5 s of the products, a quarter of the other 6 s.
    """
    first, slow, fast = case.first, peak_of(case, now), peak_of(case, dtype)
    if first is None or slow is None or fast is None:
        return None
    computed = float(first.compute_seconds.sum()) * case.loop_seconds / float(first.wall_seconds.sum())
    flop = case.account.work.hardware_flops or case.account.work.model_flops
    products = min(computed, flop / max(1, len(case.account.ranks)) / slow[0]) if flop else None
    evidence = [
        Evidence("dtype of the matrix products", _NAMES[now], "", "spans.jsonl: settings.model.matmul_dtype"),
        Evidence(f"peak in {_NAMES[now]}", slow[0], "FLOP/s", slow[1]),
        Evidence(f"peak in {_NAMES[dtype]}", fast[0], "FLOP/s", fast[1]),
        Evidence("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
    ]
    if products is not None:
        evidence.append(
            Evidence(f"time of the products at the {_NAMES[now]} peak", products, "seconds", "run.json: work")
        )
    saved = (products or computed) * (1 - slow[0] / fast[0])
    basis = f"products {fast[0] / slow[0]:.1f} times as fast ({flops(fast[0])}FLOP/s, not {flops(slow[0])}FLOP/s)"
    if dtype != "tf32" and case.on_cuda:
        saved += (computed - (products or 0)) * 0.25
        basis += ", half of the rest taken to be memory traffic, which halves"
    return FasterProducts(fast[0] / slow[0], saved, basis, evidence)
