"""Attention and optimizer that are computed operator by operator, graphs that are compiled again and again, matrix
products in a dtype that is slower than it need be."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_efficient.accounting.steps import StepColumns
from hf_efficient.diagnosis.case import MATTERS, Case, Row, Verdict, abstains, finding, rule
from hf_efficient.facts.tables import Dtype, accelerator_of_device
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.records.trace import DeviceBreakdown, KernelTime
from hf_efficient.text import counted, flops, share

_MUCH_FASTER = 1.5
_SAVED = {(True, False): 0.8, (True, True): 0.7, (False, False): 0.7, (False, True): 0.5}
"""Of eager attention's time, by (CUDA, padded rows). CPU: measured on one core in float32, four heads of 64, forward
and backward, torch 2.13, 2026-11-20: 1 x 2048 tokens 359 ms eager, 100 ms causal, 172 ms with a mask; 2 x 1024: 181,
62, 85; 4 x 512: 48, 43, 44: shorter rows gain nothing. CUDA: an estimate, FlashAttention-2's figures (arXiv 2307.08691,
figure 4) are 3 to 10 times those of eager attention."""
_FEWER_PASSES = 2 / 3
"""Of the optimizer's time: AdamW's operators one after another read or write 21 tensors (decay 2, first moment 3,
second moment 5, its root, division and epsilon 6, update 4, and the gradient), one kernel 7. Clipping the gradients,
which is in the same phase, stays."""
_NAMES: dict[Dtype, str] = {"fp32": "float32", "bf16": "bfloat16", "tf32": "TF32"}
_FLOAT32 = re.compile(r"sgemm|f32f32_f32f32|s1688gemm|s1684gemm|_ffma|simt_s", re.IGNORECASE)
"""Products of float32: SIMT kernels of cuBLAS and CUTLASS, and TF32's of both."""
_SIXTEEN = re.compile(r"bf16|fp?16|h16816|s16816|hgemm", re.IGNORECASE)


@rule()
def attention_kernel(case: Case) -> Verdict:
    """The model's attention is ``eager``, whose scores are written to memory whole."""
    first = case.first
    if case.settings("model").get("attention") != "eager":
        return None
    rows, positions = float(first.rows.sum()), float(first.processed.sum())
    if not rows > 0 or not positions > 0:
        return abstains("the length of the rows is not known", "EfficientTrainerMixin")
    length = float((first.processed**2 / first.rows).sum() / positions)
    if not case.on_cuda and length < 768:
        return None
    found = _attention_time(case)
    if found is None:
        return abstains("attention is eager; its part of the time is not known", "profile.trace")
    part_of_compute, found_by, source = found
    padded = (case.account.tokens.padding_share or 0.0) >= 0.02
    taken = part_of_compute * case.compute_seconds
    part = _SAVED[case.on_cuda, padded]
    if case.share(part * taken) < MATTERS:
        return None
    basis = f"fused attention takes {share(1 - part)} of eager attention's time on rows such as these; its time: "
    gain, costs = case.gain(part * taken, basis + found_by), "none: the same attention, in another order of sums"
    remedy = Remedy("take torch's fused attention", {"model.attn_implementation": "sdpa"}, costs, gain)
    return finding(
        f"attention is eager and takes {share(case.share(taken))} of the loop on rows of {length:,.0f} tokens",
        [
            ("attention, as part of forward and backward", part_of_compute, "share", source),
            ("length of a row, weighted by its tokens", length, "tokens", "steps.jsonl: tokens, sequences"),
        ],
        [remedy],
        case.cost(taken),
        confidence="likely",
    )


def _attention_time(case: Case) -> tuple[float, str, str] | None:
    """What grows with the square of a row's length, as a share of forward and backward on rank 0; how it was found, and
    the records it is from. None where neither times nor FLOPs show it.

    By time: least squares of forward and backward over tokens, and over tokens times the length of a row, neither below
    0. By FLOPs, without checkpointing: eager attention computes all pairs of a padded row, ``a`` FLOPs, of which a
    causal model needs about ``a (1 - p)^2 / 2`` where a share ``p`` is padding. With ``l`` for the rest, computed ``h =
    l + a``, and the model's ``m = l (1 - p) + a (1 - p)^2 / 2``:

        a = (h - m / (1 - p)) / (1 - (1 - p) / 2) = 2 (h - m / (1 - p)) / (1 + p)

    Hand-worked: h = 100, m = 45, p = 0.25: 2 * (100 - 60) / 1.25 = 64. Check: l = 36, 36 * 0.75 + 64 * 0.5625 / 2 = 45.
    """
    fitted = _fitted_share(case.first)
    if fitted is not None:
        return fitted, "the part of the steps' time that grows with the square", "steps.jsonl"
    beyond, padded = case.flops_beyond, case.account.tokens.padding_share or 0.0
    if beyond is None or case.settings("model").get("activation_checkpointing"):
        return None
    return min(1.0, 2 * beyond / (1 + padded)), "its share of the FLOPs", "run.json: work"


def _fitted_share(first: StepColumns) -> float | None:
    steady = first.steady
    counts, rows = np.maximum(first.micro_batches[steady], 1), first.rows[steady]
    seconds, tokens = first.compute_seconds[steady] / counts, first.processed[steady] / counts
    with np.errstate(divide="ignore", invalid="ignore"):
        length = first.processed[steady] / rows
    known = np.isfinite(seconds) & np.isfinite(tokens) & np.isfinite(length)
    seconds, tokens, length = seconds[known], tokens[known], length[known]
    if len(seconds) < 8 or length.std() < 0.15 * length.mean():
        return None
    linear, square = _least_squares(np.stack([tokens, tokens * length], axis=1), seconds)
    fitted = linear * tokens + square * tokens * length
    left = float(((seconds - fitted) ** 2).sum() / ((seconds - seconds.mean()) ** 2).sum())
    return None if 1 - left < 0.7 else float((square * tokens * length).sum() / fitted.sum())


def _least_squares(terms: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Neither below 0: where one would be, the other alone."""
    found = np.linalg.lstsq(terms, seconds, rcond=None)[0]
    if (found >= 0).all():
        return float(found[0]), float(found[1])
    alone = [max(0.0, float(term @ seconds / (term @ term))) for term in terms.T]
    errors = [float(((seconds - factor * term) ** 2).sum()) for factor, term in zip(alone, terms.T, strict=True)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])


@rule()
def optimizer_kernel(case: Case) -> Verdict:
    """torch's AdamW without ``fused``, in a twentieth of the loop or more."""
    held = case.settings("optimizer")
    if held.get("class") not in ("Adam", "AdamW") or held.get("fused") or case.device_type not in ("cpu", "cuda"):
        return None
    device = case.first.device_seconds.get("optimizer")
    kind = "phase_seconds" if device is None else "device_seconds"
    spent = case.phase_seconds("optimizer") if device is None else case.over_the_run(device)
    if case.share(_FEWER_PASSES * spent) < MATTERS:
        return None
    basis = "a fused step reads and writes 7 tensors for each weight where the operators one by one do 21"
    gain = case.gain(_FEWER_PASSES * spent, basis)
    return finding(
        f"the optimizer takes {share(case.share(spent))} of the loop, operator by operator: it is not fused",
        [
            ("time in the optimizer", spent, "seconds", f"steps.jsonl: {kind}.optimizer"),
            ("optimizer", str(held["class"]), "", "spans.jsonl: settings.optimizer"),
        ],
        [Remedy("take the fused AdamW", {"train.optim": "adamw_torch_fused"}, "", gain)],
        case.cost(spent),
        confidence="likely",
    )


@rule(needs_steps=False)
def recompilation(case: Case) -> Verdict:
    """Compilation in three steps or more after the warm-up, or a twentieth of the loop after it; every new shape of a
    padded batch causes one."""
    first = case.first
    if "compilation" not in first.phase_seconds:
        return None
    late = np.where(first.steady, first.phase("compilation"), 0.0)
    spent, steps = float(late.sum()), int((late > 0).sum())
    if steps < 3 and case.share(spent) < MATTERS:
        return None
    gain = case.gain(spent, "no compilation after the warm-up")
    remedies = [Remedy("pad every batch to one length (pad_to_multiple_of), or pack", {}, "some padding", gain)]
    if case.can_be_packed:
        what = "pack examples into rows of one length"
        remedies.insert(0, Remedy(what, {"train.packing": True}, "an epoch has fewer steps", gain))
    remedies.append(Remedy("look at the reasons: TORCH_LOGS=recompiles,graph_breaks"))
    source = "steps.jsonl: phase_seconds.compilation"
    reason = next(iter(case.facts.get("compilation", {}).get("break_reasons", {})), None)
    return finding(
        f"torch.compile compiles again in {counted(steps, 'step')} after warm-up: {share(case.share(spent))} of the "
        "loop",
        [
            ("compilation after warm-up", spent, "seconds", source),
            ("steps with a compilation", steps, "count", source),
            ("most frequent graph break", reason, "", "spans.jsonl: compilation.break_reasons"),
        ],
        remedies,
        case.cost(spent),
        severity="warning" if case.share(spent) >= MATTERS else "info",
    )


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
    """The layers multiply in float32, bfloat16 is at least half as fast again on the device, and a tenth of the loop is
    to be had. Where mixed precision was asked for, ``silent_upcasts`` takes over."""
    dtype = case.settings("model").get("matmul_dtype") or case.account.work.dtype
    if dtype is None:
        return abstains("the dtype of the matrix products is not known", "EfficientTrainerMixin")
    asked = case.argument("bf16") or case.argument("fp16")
    if dtype != "fp32" or asked or not case.settings("device").get("supports_bf16"):
        return None
    faster = faster_products(case, "bf16")
    if faster is None:
        return abstains("the device's peaks are not known")
    costs = "bfloat16 keeps 8 of float32's 24 bits; the weights stay in float32"
    gain = case.gain(faster.seconds, faster.basis)
    remedies = [Remedy("train in mixed precision", {"train.bf16": True}, costs, gain)]
    in_tf32 = faster_products(case, "tf32") if case.on_cuda else None  # which rounds factors to 10 bits behind the 1
    if in_tf32 is not None and in_tf32.times >= _MUCH_FASTER:
        costs = "the products' factors keep 11 of float32's 24 bits; everything else stays as it is"
        gain = case.gain(in_tf32.seconds, in_tf32.basis)
        remedies.append(Remedy("or let float32 products run in TF32", {"train.tf32": True}, costs, gain))
    return _finding(case, "the layers multiply in float32, and bfloat16 is faster here", faster, remedies)


@rule()
def emulated_bfloat16(case: Case) -> Verdict:
    """The layers multiply in bfloat16, and this CPU's float32 has at least half as much again: a tenth of the loop."""
    emulates = case.device_type == "cpu" and case.settings("device").get("supports_bf16") is False
    if not emulates or case.settings("model").get("matmul_dtype") != "bf16":
        return None
    faster = faster_products(case, "fp32", now="bf16")
    if faster is None:
        return abstains("the CPU's peaks are not known")
    overrides: dict[str, Any] = {"train.bf16": False} if case.argument("bf16") else {}
    if case.settings("model").get("weights_dtype") == "bfloat16":
        overrides["model.dtype"] = "float32"
    if case.is_qlora:
        overrides |= {"model.dtype": "float32", "adapter.quantization.compute_dtype": "float32"}
    costs = "weights and activations in float32 are twice as large"
    remedy = Remedy("multiply in float32", overrides, costs, case.gain(faster.seconds, faster.basis))
    title = "the layers multiply in bfloat16, and float32 is faster on this CPU"
    return _finding(case, title, faster, [remedy])


def _finding(case: Case, title: str, faster: FasterProducts, remedies: list[Remedy]) -> Finding | None:
    if faster.times < _MUCH_FASTER or case.share(faster.seconds) < MATTERS:
        return None
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
