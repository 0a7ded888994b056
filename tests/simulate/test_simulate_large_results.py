"""Large masks and matrices are never computed; small ones keep their values."""

from __future__ import annotations

import pytest
import torch

from hf_efficient.simulate.blank import MOST_REAL, Blank, blank, grows_large
from hf_efficient.simulate.tensor_log import TensorLog

aten = torch.ops.aten
CPU = {"device": torch.device("cpu"), "pin_memory": False}


def logged(make):
    log = TensorLog()
    with log:
        made = make()
    return made, sum(size for _, size in log.events)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: torch.eye(2**20), 4 * 2**40),
        (lambda: torch.zeros(2**20, 2**20, dtype=torch.bfloat16), 2 * 2**40),
        (lambda: torch.full((2**21,), 1, dtype=torch.int64), 8 * 2**21),
    ],
)
def test_a_matrix_that_no_machine_could_hold_is_blank(make, size):
    made, bytes_ = logged(make)
    assert isinstance(made, Blank)
    assert bytes_ == size


def test_a_mask_of_rows_and_columns_that_no_machine_could_hold_is_blank():
    places = torch.arange(2**20)
    log = TensorLog()
    log.add(places, "positions", "rest")
    with log:
        mask = (places[:, None] >= places[None]) & (places[:, None] < 2**20 - places[None])
    assert isinstance(mask, Blank)
    assert (mask.shape, mask.dtype) == ((2**20, 2**20), torch.bool)
    assert max(size for _, size in log.events) == 2**40


def test_what_is_small_keeps_its_values():
    places, _ = logged(lambda: torch.arange(1000) * 2)
    mask, _ = logged(lambda: places[:, None] > places[None])
    assert int(mask.sum()) == 999 * 1000 // 2
    assert float(logged(lambda: torch.eye(1024).sum())[0]) == 1024


@pytest.mark.parametrize("beyond", [0, 1])
def test_the_limit_is_of_values_of_the_result(beyond):
    row, column = torch.ones(1, 2**10), torch.ones(2**10 + beyond, 1)
    assert grows_large(aten.mul.Tensor, (row, column), {}) is bool(beyond)
    assert grows_large(aten.ones.default, ([MOST_REAL + beyond],), CPU) is bool(beyond)


def test_products_and_lookups_are_not_asked():
    column, row = torch.ones(2**11, 1), torch.ones(1, 2**11)
    assert not grows_large(aten.mm.default, (column, row), {})
    assert not grows_large(aten.lift_fresh.default, (torch.ones(2**21),), {})


def test_random_numbers_are_drawn_as_without_the_question():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(logged(lambda: torch.rand(4))[0], expected)


def test_a_blank_among_the_arguments_is_blank_as_ever():
    made, _ = logged(lambda: blank(4, dtype=torch.float32) * torch.ones(4))
    assert isinstance(made, Blank)
