"""What a simulated step computes: every operator with its FLOPs and bytes."""

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from hf_efficient.records.device import OperatorFamily, OperatorWork
from hf_efficient.simulate.decompositions import FLASH_BACKWARD, FLASH_CPU_BACKWARD, FLASH_FORWARD, flash_flops

_aten = torch.ops.aten
_FUSED: dict[Any, tuple[Callable[..., Any], int, int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: (sdpa_flop_count, 3, 4),
    FLASH_CPU_BACKWARD: (sdpa_backward_flop_count, 4, 7),
}
"""Fused attention: the formula of its FLOPs, how many arguments' shapes that takes, and the place of ``is_causal``."""
_LINEAR = frozenset({_aten.linear, _aten.matmul})
"""What an operator's inside may hold whole; elsewhere torch shows their parts."""
_ADDMM = frozenset({_aten.addmm, _aten.addmm_})
_MATMUL = frozenset({*_LINEAR, *_ADDMM, _aten.mm, _aten.bmm, _aten.baddbmm, _aten._grouped_mm, _aten.convolution})
_EMBEDDING = frozenset({_aten.embedding, _aten.embedding_dense_backward, _aten.index, _aten.gather, _aten.scatter})
_COPY = frozenset({_aten._to_copy, _aten.copy_, _aten.clone, _aten.cat, _aten.contiguous})
_REDUCTIONS = ("sum", "mean", "softmax", "norm", "nll_loss", "logsumexp", "topk", "max", "min", "any", "all")
_INT8_PRODUCT = "int8_linear_matmul"
"""Of bitsandbytes, which need not be installed."""
_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int8: "int8"}


class OperatorCount:
    """Adds up operators as they run, by operator and shape; ``factor`` is how often what runs now stands for itself.
    FLOPs are those of ``torch.utils.flop_counter``; of fused causal attention half, as GPU kernels skip the rest."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._once: dict[Any, OperatorWork | None] = {}  # None for one that computes nothing
        self._numbers: dict[Any, float] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not _launches(func):
            return
        key = (func, tuple([_described(one) for one in args]))
        if key not in self._once:
            self._once[key] = _work(func, args, kwargs, out)
        self._numbers[key] = self._numbers.get(key, 0.0) + self.factor

    def works(self) -> list[OperatorWork]:
        found = []
        for key, once in self._once.items():
            if once is not None:
                calls = max(1, round(self._numbers[key] * once.calls))
                of_one = (once.flops, once.read_bytes, once.written_bytes)
                flops, read, written = (round(size * (calls / once.calls)) for size in of_one)
                found.append(OperatorWork(once.name, once.family, once.dtype, flops, read, written, calls))
        return found


def family_of(func: Any) -> OperatorFamily:
    packet = func.overloadpacket
    name = packet.__name__
    if packet in _MATMUL or name == _INT8_PRODUCT:
        return "matmul"
    if "scaled_dot_product" in name or "flash" in name:
        return "attention"
    if packet in _EMBEDDING:
        return "embedding"
    if "adam" in name or name.startswith(("_fused_", "_foreach_")):
        return "optimizer"
    if packet in _COPY:
        return "copy"
    return "reduction" if any(word in name for word in _REDUCTIONS) else "elementwise"


def _work(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OperatorWork | None:
    read, written = _tensors(args), _tensors(out)
    if func._schema.is_mutable and not written:
        written = read
    if not written:
        return None
    lists = [len(one) for one in args if isinstance(one, (list, tuple)) and one and isinstance(one[0], torch.Tensor)]
    factors = read[1:] if func.overloadpacket in _ADDMM else read  # a sum may be more exact than its factors
    first = next((one for one in factors if one.is_floating_point()), (read or written)[0])
    return OperatorWork(
        name=func._schema.name,
        family=family_of(func),
        dtype=_DTYPES.get(first.dtype, str(first.dtype).removeprefix("torch.")),
        flops=_flops(func, args, kwargs, out),
        read_bytes=_bytes(read),
        written_bytes=_bytes(written),
        calls=max(1, math.ceil(max(lists) / _TENSORS_PER_LAUNCH)) if lists and "foreach" in func._schema.name else 1,
    )


_TENSORS_PER_LAUNCH = 36
"""Of an operator on a list (``_foreach_*``): ``depth_to_max_tensors`` in ATen/native/cuda/MultiTensorApply.cuh."""


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    packet = func.overloadpacket
    if packet in _FUSED:
        count, tensors, place = _FUSED[packet]
        causal = kwargs.get("is_causal", args[place] if len(args) > place else False)
        return int(count(*(one.shape for one in args[:tensors]))) // (2 if causal else 1)
    if packet in (FLASH_FORWARD, FLASH_BACKWARD):
        return flash_flops(func, args, kwargs)
    if packet in _ADDMM:
        return int(2 * args[1].numel() * args[2].shape[-1])
    if packet is _aten._grouped_mm:
        # Products of groups of rows, one weight for each; which rows are in which does not change their sum.
        left, right = args[:2]
        batch = left.shape[0] if left.dim() == right.dim() == 3 else 1
        return int(2 * batch * left.shape[-2] * left.shape[-1] * right.shape[-1])
    if packet in _LINEAR or packet.__name__ == _INT8_PRODUCT:
        return int(2 * out.numel() * args[0].shape[-1])
    formula: Callable[..., int] | None = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0


@functools.cache
def _launches(func: Any) -> bool:
    """Whether it runs a kernel; a view and an allocation do not."""
    schema = func._schema
    if func.overloadpacket in (_aten._unsafe_view, _aten.detach, _aten.empty_strided, _aten.empty_like, _aten.empty):
        return False
    return bool(schema.is_mutable) or all(one.alias_info is None for one in schema.returns)


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.shape, value.dtype)
    if value is None or isinstance(value, (int, float, str)):
        return value
    return tuple([_described(one) for one in value]) if isinstance(value, (list, tuple)) else None


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.dtype.itemsize for one in tensors)
