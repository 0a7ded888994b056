"""Which products ran in float32, by the names of their kernels."""

from __future__ import annotations

import re

from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.records.trace_kernels import KernelTime

__all__ = ["float32_products_of"]

_FLOAT32 = re.compile(r"sgemm|f32f32_f32f32|s1688gemm|s1684gemm|_ffma|simt_s", re.IGNORECASE)
"""Products of float32: SIMT kernels of cuBLAS and CUTLASS, and TF32's of both."""
_SIXTEEN = re.compile(r"bf16|fp?16|h16816|s16816|hgemm", re.IGNORECASE)


def float32_products_of(device: DeviceBreakdown) -> list[KernelTime]:
    """Among the kernels that take longest, the longest first; other names are taken to be of 16 bits.

    One that reads 16 bits and adds up in float32 (``ampere_fp16_sgemm``) is none.
    """
    products = [one for one in device.kernels if one.family == "matmul"]
    return [one for one in products if _FLOAT32.search(one.full_name) and not _SIXTEEN.search(one.full_name)]
