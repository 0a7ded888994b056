"""Names of kernels as people read them."""

from __future__ import annotations

import re

__all__ = ["short_name"]

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
    ``at::native::vectorized_elementwise_kernel [CUDAFunctor_add]``. Copies and memsets keep their whole name.
    """
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
