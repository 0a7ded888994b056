"""Work of operators by hand, and as torch counts it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.operator_count import OperatorCount, family_of
from hf_efficient.simulate.tensor_log import TensorLog

BF16 = torch.bfloat16


def total(count):
    return sum(work.flops for work in count.works())


def counted(run):
    """The works of what runs, by name."""
    count = OperatorCount()
    with TensorLog(on_operator=count):
        run(count)
    return {work.name: work for work in count.works()}, count


def test_a_product_once_and_several_times():
    """(8, 16) with (16, 4): 2 * 8 * 16 * 4 FLOPs; 128 and 64 values of two bytes read, 32 written."""
    left, right = blank(8, 16, dtype=BF16), blank(16, 4, dtype=BF16)
    works, count = counted(lambda _: torch.mm(left, right))
    work = works["aten::mm"]
    assert (work.flops, work.read_bytes, work.written_bytes, work.calls) == (1024, 384, 64, 1)
    assert (work.family, work.dtype) == ("matmul", "bf16")
    assert total(count) == 1024
    left, right, other = blank(8, 16, dtype=BF16), blank(16, 4, dtype=BF16), blank(16, 8, dtype=BF16)
    count = OperatorCount()
    with TensorLog(on_operator=count):
        torch.mm(left, right)
        torch.mm(left, right)
        torch.mm(left, other)
    assert [(work.calls, work.flops) for work in count.works()] == [(2, 2048), (1, 2048)]
    assert total(count) == 4096
    # At a factor of 4, then once.
    left, right = blank(8, 16, dtype=BF16), blank(16, 4, dtype=BF16)

    def run(count):
        count.factor = 4.0
        torch.mm(left, right)
        count.factor = 1.0
        torch.mm(left, right)

    works, _ = counted(run)
    assert (works["aten::mm"].calls, works["aten::mm"].flops, works["aten::mm"].written_bytes) == (5, 5120, 320)


@pytest.mark.parametrize(("causal", "expected"), [(False, 2 * 2 * 3 * 32 * 32 * 16), (True, 2 * 3 * 32 * 32 * 16)])
def test_fused_attention(causal, expected):
    """Two products of 3 heads x 32 x 32 x 16; where it is causal, half of the square."""
    query, key, value = (blank(1, 3, 32, 16, dtype=BF16) for _ in range(3))
    works, count = counted(lambda _: F.scaled_dot_product_attention(query, key, value, is_causal=causal))
    assert total(count) == expected
    assert [work.family for work in works.values() if work.flops] == ["attention"]


@pytest.mark.parametrize(("causal", "share"), [(False, 1), (True, 2)])
def test_the_backward_of_fused_attention(causal, share):
    """Five products, of which one computes the scores again."""
    inputs = [blank(1, 3, 32, 16, dtype=BF16).requires_grad_() for _ in range(3)]
    result = F.scaled_dot_product_attention(*inputs, is_causal=causal)
    _, count = counted(lambda _: result.backward(blank(1, 3, 32, 16, dtype=BF16)))
    assert total(count) == 5 * 2 * 3 * 32 * 32 * 16 // share


def test_what_runs_no_kernel_or_writes_in_place():
    tensor = blank(4, 6, dtype=BF16)

    def run(_):
        tensor.view(24)
        tensor.t()
        tensor.detach()
        torch.empty_like(tensor)

    assert counted(run)[0] == {}
    tensor = blank(4, 6, dtype=torch.float32)
    work = counted(lambda _: tensor.add_(1.0))[0]["aten::add_.Tensor".removesuffix(".Tensor")]
    assert (work.read_bytes, work.written_bytes, work.family, work.dtype) == (96, 96, "elementwise", "fp32")


@pytest.mark.parametrize(("tensors", "launches"), [(1, 1), (36, 1), (37, 2), (100, 3)])
def test_an_operator_on_a_list_launches_a_kernel_for_36_tensors(tensors, launches):
    held = [blank(4, dtype=torch.float32) for _ in range(tensors)]
    works, _ = counted(lambda _: torch._foreach_add_(held, 1.0))
    (work,) = works.values()
    assert (work.calls, work.written_bytes) == (launches, tensors * 16)


def test_families():
    aten = torch.ops.aten
    families = {
        aten.mm.default: "matmul",
        aten.addmm.default: "matmul",
        aten._scaled_dot_product_flash_attention_for_cpu.default: "attention",
        aten.embedding.default: "embedding",
        aten._fused_adamw_.default: "optimizer",
        aten._to_copy.default: "copy",
        aten._log_softmax.default: "reduction",
        aten.mul.Tensor: "elementwise",
    }
    assert {one: family_of(one) for one in families} == families


def test_a_small_network_is_counted_as_torch_counts_it():
    """Forward and backward of two linear layers and a convolution, on values and without."""

    def step(make):
        first, second, kernel = make(32, 16), make(8, 32), make(4, 3, 3)
        rows, line = make(5, 16), make(2, 3, 12)
        for one in (first, second, kernel):
            one.requires_grad_()
        found = F.linear(torch.relu(F.linear(rows, first)), second).sum() + F.conv1d(line, kernel).sum()
        found.backward()

    with FlopCounterMode(display=False) as real:
        step(lambda *shape: torch.rand(shape))
    _, count = counted(lambda _: step(lambda *shape: blank(*shape, dtype=torch.float32)))
    assert total(count) == real.get_total_flops() > 0


def flops_of(left, right, ends):
    count = OperatorCount()
    with TensorLog(on_operator=count):
        torch._grouped_mm(left, right, offs=ends)
    return total(count)


def test_products_of_several_experts():
    """Ten rows of 16 values through experts of 16 x 32: 2 * 10 * 16 * 32, however the rows are shared out."""
    rows, experts = blank(10, 16, dtype=torch.bfloat16), blank(4, 16, 32, dtype=torch.bfloat16)
    assert flops_of(rows, experts, torch.tensor([2, 4, 7, 10], dtype=torch.int32)) == 2 * 10 * 16 * 32
    # (32, 16) with (16, 8): each of the 16 rows once.
    left, right = blank(32, 16, dtype=torch.bfloat16), blank(16, 8, dtype=torch.bfloat16)
    assert flops_of(left, right, torch.tensor([2, 4, 7, 16], dtype=torch.int32)) == 2 * 32 * 16 * 8
