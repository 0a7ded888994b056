"""Names of kernels and operators: to which kind of work they belong, and how people read them.

The names are those of torch's kernels, cuBLAS, cuBLASLt, cuDNN, CUTLASS, FlashAttention, Triton, NCCL and RCCL, rocBLAS
and hipBLASLt (``Cijk_``), MIOpen, fbgemm and bitsandbytes. The first family that knows a name has it, else ``other``.
"""

import re
from pathlib import Path

import numpy as np
import yaml

from hf_efficient.records.trace import KERNEL_FAMILIES, FamilyTime, KernelFamily
from hf_efficient.trace.read import Floats, Ints

OPTIMIZER = KERNEL_FAMILIES.index("optimizer")

COMMUNICATION = re.compile(
    r"^(void )?(nccl|rccl)\w*(Kernel|DevFunc)|^(nccl|rccl):|^mscclKernel|cross_device_reduce|nvshmem|multimem_all"
    r"|(one|two)_shot_all_reduce"
)

_NAMES = yaml.safe_load(Path(__file__).with_name("families.yaml").read_text(encoding="utf-8"))


def _patterns(*tables: str) -> list[tuple[KernelFamily, re.Pattern[str]]]:
    found = [pair for table in tables for pair in _NAMES[table].items()]
    return [(family, re.compile("|".join(parts), re.IGNORECASE)) for family, parts in found]


_KERNEL_PATTERNS = [("communication", COMMUNICATION), *_patterns("compiled_kernels", "kernels", "later_kernels")]
_OPERATOR_PATTERNS = _patterns("operators")


def kernel_family(name: str) -> KernelFamily:
    """Of a kernel, a copy or a memset of a device."""
    return _first(_KERNEL_PATTERNS, name)


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
