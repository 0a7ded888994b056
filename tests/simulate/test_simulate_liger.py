"""Stand-ins of Liger's kernels: what each allocates, keeps and writes in place."""

import pytest
import torch

from hf_efficient.simulate import liger
from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.tensor_log import TensorLog

ROWS, WIDTH, WORDS = 64, 24, 96
BF16 = torch.bfloat16


def allocated(code, *tensors):
    """Bytes of each allocation of forward and backward, and what was there at most beside the arguments."""
    log = TensorLog()
    for one in tensors:
        log.add(one, "argument", "rest")
    before = most = sum(size for _, size in log.events)
    with log:
        code(*tensors).sum().backward()
    live = 0
    for _, size in log.events:
        live += size
        most = max(most, live)
    return [size for _, size in log.events if size > 8][len(tensors) :], most - before


def values(*shape, dtype=BF16):
    return blank(*shape, dtype=dtype).requires_grad_()


def test_a_norm_keeps_a_float_of_each_row_and_its_gradient_takes_no_memory():
    sizes, _ = allocated(liger.RmsNorm.apply, values(ROWS, WIDTH), blank(WIDTH, dtype=BF16))
    result = 2 * ROWS * WIDTH
    assert sizes == [4 * ROWS, result, result]  # the last one is the sum's own gradient, made contiguous


def test_a_gated_product_writes_its_gradients_into_what_it_kept():
    sizes, _ = allocated(liger.GatedProduct.apply, values(ROWS, WIDTH), values(ROWS, WIDTH))
    assert sizes == [2 * ROWS * WIDTH]


def test_rotated_in_place():
    query, key = (blank(2, ROWS, heads, 8, dtype=BF16).transpose(1, 2).requires_grad_() for heads in (4, 2))
    tables = [blank(1, ROWS, 8, dtype=BF16) for _ in range(2)]
    log = TensorLog()
    for one in (query, key, *tables):
        log.add(one, "argument", "rest")
    with log:
        turned = liger.Rope.apply(query * 1, key * 1, *tables)
    assert [one.shape for one in turned] == [query.shape, key.shape]
    assert [life.bytes for life in log.lives[4:]] == [2 * 2 * ROWS * heads * 8 for heads in (4, 2)]  # the products by 1


def test_the_gradient_takes_the_place_of_the_logits():
    sizes, _ = allocated(lambda one: liger.CrossEntropy.apply(one * 1), values(ROWS, WORDS, dtype=torch.float32))
    assert sizes == [4 * ROWS * WORDS, 4 * ROWS, 4 * ROWS * WORDS]  # the copy, the losses; the copy's own gradient


@pytest.mark.parametrize("trained", [False, True])
def test_logits_of_a_chunk_at_a_time(trained):
    weight = blank(WORDS, WIDTH, dtype=BF16).requires_grad_(trained)
    sizes, most = allocated(liger.FusedLinearCrossEntropy.apply, values(ROWS, WIDTH), weight)
    chunk = 16  # 64 rows in 96 / 24 = 4 chunks
    assert liger.chunk_rows(ROWS, WIDTH, WORDS) == chunk
    assert (
        sizes.count(2 * chunk * WORDS) == ROWS // chunk + 1
    )  # and the gradient of the hidden states, which is as large
    assert (2 * WORDS * WIDTH in sizes) == trained
    assert most < 2 * ROWS * WORDS + 2 * trained * 2 * WORDS * WIDTH


def test_chunks_by_hand():
    assert liger.chunk_rows(16_384, 4_096, 128_256) == 512
