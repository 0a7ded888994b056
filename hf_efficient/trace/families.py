"""Names of kernels and operators: to which kind of work they belong, and how people read them.

The names are those of torch's kernels, cuBLAS, cuBLASLt, cuDNN, CUTLASS, FlashAttention, Triton, NCCL and RCCL, rocBLAS
and hipBLASLt (``Cijk_``), MIOpen, fbgemm and bitsandbytes. The first family that knows a name has it, else ``other``.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from hf_efficient.records.trace import KERNEL_FAMILIES, FamilyTime, KernelFamily
from hf_efficient.trace.read import Floats, Ints

OPTIMIZER = KERNEL_FAMILIES.index("optimizer")

COMMUNICATION = re.compile(
    r"^(void )?(nccl|rccl)\w*(Kernel|DevFunc)|^(nccl|rccl):|^mscclKernel|cross_device_reduce|nvshmem|multimem_all"
    r"|(one|two)_shot_all_reduce"
)

# Parts of names, in any case of letters. torch.compile's names list all that a kernel fuses, so they go first.
_COMPILED_KERNELS: Mapping[KernelFamily, str] = {
    "attention": r"^triton_\w*attention",
    "elementwise": r"^triton_poi",
    "normalisation": r"^triton_(red|per)\w*norm",
    "reduction": r"^triton_(red|per)",
}
_KERNELS: Mapping[KernelFamily, str] = {
    "copy": r"^memcpy ^copydevice ^copyhost ^dma",
    "memset": r"^memset ^fillbuffer",
    "attention": r"flash fmha attention attn_fwd attn_bwd sdpa mha_fwd mha_bwd",
    "optimizer": r"adam adagrad rmsprop lamb_ \bsgd optimizer",
    "embedding": r"embedding indexing_backward index_?select gather_kernel vectorized_gather",
    "normalisation": r"layer_?norm rms_?norm batch_?norm group_?norm bn_fw bn_bw gammabeta cucomputepart",
    "matmul": r"(?<!fb)gemm gemv matmul cutlass cublas conv(?!ert) wgrad dgrad fprop winograd xmma cijk_ _mm_ _bmm"
    r" addmm implicit splitk nvjet dot_kernel tensorop scudnn hcudnn cask_cudnn cudnn_infer fft2d miopen grouped_mm"
    r" epilogue::impl",
}
_LATER_KERNELS: Mapping[KernelFamily, str] = {
    "copy": r"direct_copy copy_kernel catarray copypacked transpose permute nchwtonhwc nhwctonchw",
    "reduction": r"reduce softmax cub:: argmax topk sort scan norm loss pool radix",
    "elementwise": r"elementwise pointwise fill dropout quantize where masked unrolled vectorized multi_tensor_apply",
}
# Whole names of operators, behind ``::`` and before an underscore that says "in place"; or parts of them.
_OPERATORS: Mapping[KernelFamily, str] = {
    "communication": r"^nccl: ^gloo: ^c10d:: ^_c10d ^record_param_comms ^mpi: ^ucc:",
    "attention": r"attention flash sdpa",
    "optimizer": r"::_fused_ addcdiv addcmul ^optimizer\.",
    "embedding": r"embedding index_select",
    "normalisation": r"layer_?norm batch_?norm group_?norm instance_?norm rms_?norm",
    "matmul": r"::_?s?p?mm$ ::addmm ::_?addmm_activation ::bmm$ ::baddbmm ::matmul$ ::linear$ ::addmv ::mv$ ::dot$"
    r" ::einsum$ ::addbmm _scaled_mm _grouped_mm conv(?!ert) gemm mkldnn_linear",
    "copy": r"::copy_?$ ::_to_copy$ ::to$ ::clone$ ::contiguous$ ::cat$ ::stack$ ::_?pin_memory$",
    "memset": r"::zero_$ ::zeros ::fill_$ ::full ::ones",
    "reduction": r"::\w*sum$ ::mean$ ::amax$ ::amin$ ::max$ ::min$ ::argmax$ ::argmin$ norm$ ::var ::std ::topk$"
    r" ::sort$ ::cum ::prod$ ::all$ ::any$ ::nonzero$ softmax loss ::logsumexp ::_?unique pool",
    "elementwise": r"::_foreach_ ::add_?$ ::sub_?$ ::mul_?$ ::div_?$ ::pow_?$ ::neg_?$ ::exp_?$ ::log ::r?sqrt_?$"
    r" ::abs_?$ ::where$ ::masked_fill silu gelu relu sigmoid tanh threshold dropout"
    r" ::(eq|ne|lt|le|gt|ge)_?$ ::clamp ::rsub$ ::lerp ::cos_?$ ::sin_?$ ::bitwise ::logical"
    r" ::(normal|uniform|bernoulli|random)_ ::is(nan|inf|finite)$ ::tri[ul] ::erf ::reciprocal ::square$"
    r" ::sign$",
}


def _patterns(*tables: Mapping[KernelFamily, str]) -> list[tuple[KernelFamily, re.Pattern[str]]]:
    found = [pair for table in tables for pair in table.items()]
    return [(family, re.compile("|".join(parts.split()), re.IGNORECASE)) for family, parts in found]


_KERNEL_PATTERNS = [("communication", COMMUNICATION), *_patterns(_COMPILED_KERNELS, _KERNELS, _LATER_KERNELS)]
_OPERATOR_PATTERNS = _patterns(_OPERATORS)


@lru_cache(maxsize=65536)
def kernel_family(name: str) -> KernelFamily:
    """Of a kernel, a copy or a memset of a device."""
    return _first(_KERNEL_PATTERNS, name)


@lru_cache(maxsize=65536)
def operator_family(name: str) -> KernelFamily:
    """Of an operator on the host, such as ``aten::mm``; autograd's own work around a node is ``other``."""
    return _first([] if name.startswith("autograd::engine") else _OPERATOR_PATTERNS, name)


def _first(patterns: list[tuple[KernelFamily, re.Pattern[str]]], name: str) -> KernelFamily:
    return next((family for family, pattern in patterns if pattern.search(name)), "other")


def family_times(lengths: Floats, families: Ints) -> tuple[FamilyTime, ...]:
    """Times in microseconds added up, the longest family first; families without any are left out."""
    seconds = np.bincount(families, lengths, minlength=len(KERNEL_FAMILIES)) / 1e6
    counts = np.bincount(families, minlength=len(KERNEL_FAMILIES))
    shares = seconds / (seconds.sum() or 1.0)
    found = [
        FamilyTime(family, seconds=float(seconds[one]), share=float(shares[one]), count=int(counts[one]))
        for one, family in enumerate(KERNEL_FAMILIES)
        if counts[one]
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


_MOST_CHARACTERS = 160
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
_BRACKETS = re.compile(r"<[^<>]*>|\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_TRIVIAL = re.compile(r"^(void|static void|int|bool) ")
# Kernels that run a functor handed to them say nothing without it.
_GENERIC = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|cutlass::Kernel|index_|distribution|device_kernel")
_FUNCTOR = re.compile(
    r"(\w+(?:_kernel_cuda|_kernel_impl|Functor\w*|Op(?:s)?|Ops)|CUDAFunctor\w*|cutlass_\w+|\w+_kernel)\b(?!\s*::)"
)


def short_name(name: str) -> str:
    """A kernel's name without return type, name spaces' noise and arguments; of a generic kernel with what it computes.
    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(int, ...)`` becomes
    ``at::native::vectorized_elementwise_kernel [CUDAFunctor_add]``. Copies and memsets keep their whole name."""
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = _TRIVIAL.sub("", _ANONYMOUS.sub("", name))
    stripped, before = plain, None
    while stripped != before:
        before, stripped = stripped, _BRACKETS.sub("", stripped)
    stripped = re.split(r"[<(]", stripped)[0].strip() or plain[:_MOST_CHARACTERS]
    if _GENERIC.search(stripped):
        base = stripped.rsplit("::", 1)[-1]
        inner = [found for found in _FUNCTOR.findall(plain[len(stripped) :]) if found != base]
        if inner:
            stripped += f" [{inner[0]}]"
    return stripped[:_MOST_CHARACTERS]
