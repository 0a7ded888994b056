"""The cuBLAS workspace by generation; the context is a stated fact."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.allocator import CONTEXT, cublas_workspace_bytes, nccl_bytes


@pytest.mark.parametrize(
    ("capability", "size"),
    [
        ((7, 5), 8_519_680),
        ((8, 0), 8_519_680),
        ((8, 9), 8_519_680),
        ((9, 0), 33_554_432),
        ((10, 0), 33_554_432),
        ((12, 0), 33_554_432),
    ],
)
def test_workspace(capability, size):
    assert cublas_workspace_bytes(capability) == size


def test_the_context_is_marked_as_an_estimate_with_a_source():
    assert CONTEXT.estimated
    assert CONTEXT.bytes == 446_693_376
    assert CONTEXT.source.startswith("https://")


@pytest.mark.parametrize(("ranks", "mebibytes"), [(1, 0), (2, 342), (3, 392), (8, 392)])
def test_what_nccl_takes(ranks, mebibytes):
    assert nccl_bytes(ranks) == mebibytes * 2**20
