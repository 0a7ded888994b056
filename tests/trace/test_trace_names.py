"""Names of kernels, shortened."""

from __future__ import annotations

import pytest

from hf_efficient.trace.families import short_name

REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, 4> > >(int)"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)",
            "at::native::vectorized_elementwise_kernel [CUDAFunctor_add]",
        ),
        (
            "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>(float*)",
            "at::native::CatArrayBatchedCopy",
        ),
        (
            "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>(Params)",
            "cutlass::Kernel [cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4]",
        ),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "ampere_sgemm_32x32_sliced1x4_tn"),
        ("void unbalanced<int", "unbalanced"),
        ("", ""),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_a_generic_kernel_says_what_it_computes():
    assert short_name(REDUCE).startswith("at::native::reduce_kernel [")


def test_a_long_name_is_cut():
    assert len(short_name("k" * 1000)) == 160
