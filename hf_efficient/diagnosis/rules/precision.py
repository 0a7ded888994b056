"""Matrix products in a dtype that is slower than it need be."""

import re
from dataclasses import dataclass
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, Row, Verdict, abstains, finding, rule
from hf_efficient.facts.accelerators import Dtype, accelerator_of_device
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.records.trace import DeviceBreakdown, KernelTime
from hf_efficient.text import flops, share

_MUCH_FASTER = 1.5
_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "tf32": "TF32"}
_FLOAT32 = re.compile(r"sgemm|f32f32_f32f32|s1688gemm|s1684gemm|_ffma|simt_s", re.IGNORECASE)
"""Products of float32: SIMT kernels of cuBLAS and CUTLASS, and TF32's of both."""
_SIXTEEN = re.compile(r"bf16|fp?16|h16816|s16816|hgemm", re.IGNORECASE)


@dataclass(frozen=True)
class FasterProducts:
    """Products in another dtype, ``times`` as fast at the peak, with the seconds saved over the run and their basis."""

    times: float
    seconds: float
    basis: str
    evidence: list[Row]


def _peak_of(case: Case, dtype: Dtype) -> tuple[float, str] | None:
    """FLOP/s and their source: what was measured on this CPU, or what the accelerator's vendor states."""
    measured = case.settings("peaks").get(dtype)
    if measured:
        return float(measured), "spans.jsonl: settings.peaks"
    known = accelerator_of_device(str(case.settings("device").get("name", "")))
    stated = known.peak(dtype) if known is not None else None
    return (stated, f"{known.name}: {known.source}") if known is not None and stated else None


def faster_products(case: Case, dtype: Dtype, now: Dtype = "fp32") -> FasterProducts | None:
    """Of a run whose layers multiply in ``now``; None where a peak or the steps are not known. The products take at
    least their FLOPs at the peak. On a CUDA device the rest of forward and backward counts as half memory traffic,
    which 16 bits halve. TF32 saves in the products alone, and so does a CPU, where casting costs the rest: a Llama of
    64 wide with a tenth of its time in products trained 30% slower in bfloat16 (two cores of an AMD EPYC with
    AVX512-BF16, torch 2.13). Hand-worked, on CUDA: 8 s of forward and backward, 2 s of them products at the peak, four
    times as fast in bfloat16: 1.5 s of the products, a quarter of the other 6 s."""
    slow, fast = _peak_of(case, now), _peak_of(case, dtype)
    if slow is None or fast is None:
        return None
    computed, work = case.compute_seconds, case.account.work
    flop = work.hardware_flops or work.model_flops
    products = min(computed, flop / case.ranks / slow[0]) if flop else None
    evidence: list[Row] = [
        ("dtype of the matrix products", _NAMES[now], "", "spans.jsonl: settings.model.matmul_dtype"),
        (f"peak in {_NAMES[now]}", slow[0], "FLOP/s", slow[1]),
        (f"peak in {_NAMES[dtype]}", fast[0], "FLOP/s", fast[1]),
        ("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
        (f"time of the products at the {_NAMES[now]} peak", products, "seconds", "run.json: work"),
    ]
    saved = (products or computed) * (1 - slow[0] / fast[0])
    basis = f"products {fast[0] / slow[0]:.1f} times as fast ({flops(fast[0])}FLOP/s, not {flops(slow[0])}FLOP/s)"
    if dtype != "tf32" and case.on_cuda:
        saved += (computed - (products or 0)) * 0.25
        basis += ", half of the rest taken to be memory traffic, which halves"
    return FasterProducts(fast[0] / slow[0], saved, basis, evidence)


@rule()
def float32_products(case: Case) -> Verdict:
    """The layers multiply in float32, the device's bfloat16 has at least half as much again, and a tenth of the loop is
    to be had; ``silent_upcasts`` takes over where mixed precision was asked for."""
    dtype = case.settings("model").get("matmul_dtype") or case.account.work.dtype
    if dtype is None:
        return abstains("the dtype of the matrix products is not known", "EfficientTrainerMixin")
    asked = case.argument("bf16") or case.argument("fp16")
    if dtype != "fp32" or asked or not case.settings("device").get("supports_bf16"):
        return None
    faster = faster_products(case, "bf16")
    if faster is None:
        return abstains("the device's peaks are not known")
    if faster.times < _MUCH_FASTER or case.share(faster.seconds) < MATTERS:
        return None
    costs = "bfloat16 keeps 8 of float32's 24 bits; the weights stay in float32"
    gain = case.gain(faster.seconds, faster.basis)
    remedies = [Remedy("train in mixed precision", {"train.bf16": True}, costs, gain), *_in_tf32(case)]
    return _finding(case, "the layers multiply in float32, and bfloat16 is faster here", faster, remedies)


def _in_tf32(case: Case) -> list[Remedy]:
    """On a CUDA device float32's products may round their factors to 10 bits behind the 1."""
    faster = faster_products(case, "tf32") if case.on_cuda else None
    if faster is None or faster.times < _MUCH_FASTER:
        return []
    costs = "the products' factors keep 11 of float32's 24 bits; everything else stays as it is"
    gain = case.gain(faster.seconds, faster.basis)
    return [Remedy("or let float32 products run in TF32", {"train.tf32": True}, costs, gain)]


@rule()
def emulated_bfloat16(case: Case) -> Verdict:
    """The layers multiply in bfloat16, and this CPU's float32 has at least half as much again: a tenth of the loop."""
    emulates = case.device_type == "cpu" and case.settings("device").get("supports_bf16") is False
    if not emulates or case.settings("model").get("matmul_dtype") != "bf16":
        return None
    faster = faster_products(case, "fp32", now="bf16")
    if faster is None:
        return abstains("the CPU's peaks are not known")
    if faster.times < _MUCH_FASTER or case.share(faster.seconds) < MATTERS:
        return None
    overrides: dict[str, Any] = {"train.bf16": False} if case.argument("bf16") else {}
    if case.settings("model").get("weights_dtype") == "bfloat16":
        overrides["model.dtype"] = "float32"
    if case.is_qlora:
        overrides |= {"model.dtype": "float32", "adapter.quantization.compute_dtype": "float32"}
    costs = "weights and activations in float32 are twice as large"
    remedy = Remedy("multiply in float32", overrides, costs, case.gain(faster.seconds, faster.basis))
    title = "the layers multiply in bfloat16, which this CPU emulates: float32 is faster here"
    return _finding(case, title, faster, [remedy])


def _finding(case: Case, title: str, faster: FasterProducts, remedies: list[Remedy]) -> Finding:
    return finding(
        title,
        faster.evidence,
        remedies,
        case.cost(faster.seconds),
        severity="warning" if case.share(faster.seconds) >= 0.1 else "info",
        confidence="likely",
    )


@rule()
def silent_upcasts(case: Case) -> Verdict:
    """Float32 products in a run that asked for 16 bits, by the layers' own dtype (of 4-bit layers the compute dtype),
    else by a trace."""
    if not case.argument("bf16") and not case.argument("fp16"):
        return None
    if case.device_type == "cpu" and not case.settings("device").get("supports_bf16"):
        return None  # float32 is what is fast there
    if case.settings("model").get("matmul_dtype") == "fp32":
        return _layers_upcast(case)
    if not case.on_cuda:
        return None
    device = case.traced_device
    if device is None:
        return abstains("the dtype of the kernels is not known", "profile.trace")
    return _kernels_upcast(case, device)


def _layers_upcast(case: Case) -> Finding:
    asked = "bf16" if case.argument("bf16") else "fp16"
    faster = faster_products(case, "bf16")
    overrides: dict[str, Any] = {}
    what = "load the 4-bit layers with bnb_4bit_compute_dtype=torch.bfloat16"
    if case.is_qlora:
        overrides = {"adapter.quantization.compute_dtype": "bfloat16"}
        what = "let the 4-bit layers multiply in bfloat16"
    known = [("dtype of the matrix products", "float32", "", "spans.jsonl: settings.model.matmul_dtype")]
    gain = None if faster is None else case.gain(faster.seconds, faster.basis)
    return finding(
        f"train.{asked} is on, and yet the layers multiply in float32",
        [
            (f"train.{asked}", "true", "", "spans.jsonl: settings.arguments"),
            *(known if faster is None else faster.evidence),
        ],
        [Remedy(what, overrides, "", gain)],
        case.cost(None if faster is None else faster.seconds),
        explains=["float32_products"],
    )


def _kernels_upcast(case: Case, device: DeviceBreakdown) -> Finding | None:
    upcast = float32_products_of(device)
    taken = sum(one.seconds for one in upcast) / device.busy.window_seconds if device.busy.window_seconds else 0.0
    if taken < MATTERS:
        return None
    slow, fast = _peak_of(case, "fp32"), _peak_of(case, "bf16")
    saved = taken * (1 - slow[0] / fast[0] if slow is not None and fast is not None else 0.5)
    source = "profile/trace.rank0"
    evidence = [
        (f"{one.name}, by {one.operator or 'an unknown operator'}", one.seconds, "seconds", source)
        for one in upcast[:3]
    ]
    basis = "their part of the traced time, in 16 bits at the ratio of the peaks"
    what = "find the modules that are kept in float32 (an LM head, an adapter, a norm before a product), and cast them"
    return finding(
        f"{share(taken)} of the device's time are float32 products, though 16 bits were asked for",
        [("float32 products, of the traced time", taken, "share", source), *evidence],
        [Remedy(what, gain=case.gain(saved * case.loop_seconds, basis))],
        case.cost(taken * case.loop_seconds),
        confidence="likely",
    )


def float32_products_of(device: DeviceBreakdown) -> list[KernelTime]:
    """Among the kernels that take longest, the longest first. One that reads 16 bits and adds up in float32
    (``ampere_fp16_sgemm``) is none."""
    products = [one for one in device.kernels if one.family == "matmul"]
    return [one for one in products if _FLOAT32.search(one.full_name) and not _SIXTEEN.search(one.full_name)]
