"""FlashAttention without values: torch's own meta functions give the shapes, the source the backward's workspace."""

import pytest
import torch

from hf_efficient.simulate import decompositions as flash
from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.decompositions import workspaces
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import TensorLog

TOKENS, HEADS, SHARED, WIDTH = 100, 8, 2, 80
BF16 = torch.bfloat16


def attended(code, *, on_gpu=True):
    """What is logged of forward and backward, and the operators."""
    query, key, value = (blank(TOKENS, heads, WIDTH, dtype=BF16).requires_grad_() for heads in (HEADS, SHARED, SHARED))
    count = OperatorCount()
    log = TensorLog(on_operator=count, workspaces=workspaces(on_gpu=on_gpu))
    for one in (query, key, value):
        log.add(one, "argument", "rest")
    with log:
        code(query, key, value).sum().backward()
    return log, {work.name: work for work in count.works()}


def varlen(*bounds):
    ends = torch.tensor(bounds, dtype=torch.int32)
    return lambda q, k, v: flash.flash_attn_varlen_func(q, k, v, ends, ends, TOKENS, TOKENS, causal=True)


def test_the_forward_keeps_what_torchs_own_meta_function_returns():
    log, _ = attended(varlen(0, TOKENS))
    logged = [(life.shape, life.dtype) for life in log.lives if life.operator.endswith("_forward.default")]
    q, k = (torch.empty(TOKENS, heads, WIDTH, dtype=BF16, device="meta") for heads in (HEADS, SHARED))
    ends = torch.tensor([0, TOKENS], dtype=torch.int32, device="meta")
    torchs = torch.ops.aten._flash_attention_forward(q, k, k, ends, ends, TOKENS, TOKENS, 0.0, True, False)
    assert logged == [(tuple(one.shape), one.dtype) for one in torchs if one.numel()]
    assert logged[:2] == [((TOKENS, HEADS, WIDTH), BF16), ((HEADS, TOKENS), torch.float32)]


def test_the_backwards_workspace_by_hand():
    """Sums of the query's gradient, 228 x 8 x 96, and 8 x 228, in float32; two gradients of 8 heads, 100 x 8 x 80."""
    log, _ = attended(varlen(0, TOKENS))
    inside = [life for life in log.lives if life.operator.endswith("_backward.default")]
    sizes = [life.bytes for life in inside]
    assert sizes[:4] == [4 * HEADS * 228, 4 * 228 * HEADS * 96, 2 * TOKENS * HEADS * WIDTH, 2 * TOKENS * HEADS * WIDTH]
    assert sizes[4:] == [2 * TOKENS * heads * WIDTH for heads in (HEADS, SHARED, SHARED)]
    assert all(life.freed_at is not None for life in inside[:4])
    without, _ = attended(varlen(0, TOKENS), on_gpu=False)
    assert [life.bytes for life in without.lives if life.operator.endswith("_backward.default")] == sizes[4:]


def test_the_kernel_of_scaled_dot_product_attention_has_the_same_workspace():
    rows = blank(2, HEADS, TOKENS, WIDTH, dtype=BF16)
    found = flash.backward_workspace(
        flash.FLASH_CPU_BACKWARD.default, (rows, rows, blank(2, SHARED, TOKENS, WIDTH, dtype=BF16))
    )
    assert found == [
        ((2, HEADS, 128), torch.float32),
        ((2, 128, HEADS, 96), torch.float32),
        *[((2, TOKENS, HEADS, WIDTH), BF16)] * 2,
    ]


def test_pairs_of_two_documents_are_not_computed():
    _, one = attended(varlen(0, TOKENS))
    _, two = attended(varlen(0, 30, TOKENS))
    forward, backward = "aten::_flash_attention_forward", "aten::_flash_attention_backward"
    assert one[forward].flops == 4 * HEADS * WIDTH * TOKENS**2 / 2
    assert two[forward].flops == 4 * HEADS * WIDTH * (30**2 + 70**2) / 2
    assert two[backward].flops == 10 * HEADS * WIDTH * (30**2 + 70**2) / 2
    assert two[forward].family == two[backward].family == "attention"


def test_a_row_is_as_a_document_of_its_own():
    rows = blank(2, TOKENS, HEADS, WIDTH, dtype=BF16)
    count = OperatorCount()
    with TensorLog(on_operator=count):
        out = flash.flash_attn_func(rows, rows, rows, causal=True, window_size=(19, 19))
    assert out.shape == (2, TOKENS, HEADS, WIDTH)
    (work,) = count.works()
    assert work.flops == 2 * 4 * HEADS * WIDTH * 1800


@pytest.mark.parametrize(
    ("bounds", "causal", "window", "pairs"),
    [
        ([0, 100], False, None, 10_000),
        ([0, 100], True, None, 5_000),
        ([0, 100], True, 20, 1_800),
        ([0, 1, 3], True, 8, 2.5),
    ],
)
def test_pairs_by_hand(bounds, causal, window, pairs):
    assert flash.attended_pairs(bounds, causal=causal, window=window) == pairs
