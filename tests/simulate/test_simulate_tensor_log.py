"""Every allocation and free of hand-worked sequences, and of small networks against the profiler."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch
from real_allocations import most_at_once, real_allocations
from torch import nn

from hf_efficient.simulate.blank import Blank, blank, make_blank
from hf_efficient.simulate.tensor_log import TensorLog, find_peak

aten = torch.ops.aten


def sizes(log):
    return [size for _, size in log.events]


def test_allocations_and_frees_in_order():
    log, before = TensorLog(), blank(100, dtype=torch.float32)
    with log:
        a = before * 1  # 400 bytes
        b = (a * 2).bfloat16()  # 400, 200, and the product goes
        del a
        c = torch.cat([b, b])  # 400
        del b
    assert sizes(log) == [400, 400, 200, -400, -400, 400, -200]
    assert [index for index, _ in log.events] == [0, 1, 2, 1, 0, 3, 2]
    assert log.live_bytes == 400
    assert find_peak(log).bytes == 1000
    del c
    assert log.live_bytes == 0


def test_what_is_known_of_a_storage():
    log, before = TensorLog(where=lambda: ("forward", "layers.0")), blank(4, 8, dtype=torch.bfloat16)
    with log:
        made = before * 2
    life = log.life_of(made)
    assert (life.bytes, life.shape, life.dtype) == (64, (4, 8), torch.bfloat16)
    assert (life.operator, life.phase, life.module) == ("aten.mul.Tensor", "forward", "layers.0")
    assert (life.born_at, life.freed_at, life.category) == (0, None, "")
    assert [life.lives_at(event) for event in (0, 1, 2)] == [False, True, True]
    del made
    assert life.freed_at == 2
    assert [life.lives_at(event) for event in (0, 1, 2)] == [False, True, False]


def test_views_and_writes_in_place_allocate_nothing():
    log = TensorLog()
    base = blank(4, 8, dtype=torch.float32)
    log.add(base, "base", "weights")
    with log:
        views = [base.t(), base[1:], base.view(32), base.detach()]
        base.mul_(2).add_(1)
        base.copy_(torch.ones(4, 8))
    assert sizes(log)[:1] == [128]
    assert [size for size in sizes(log)[1:] if abs(size) != 128] == []  # but for the ones
    del base
    assert log.lives[0].freed_at is None  # the views hold it
    del views
    assert log.lives[0].freed_at is not None


def test_an_empty_tensor_is_no_allocation():
    log = TensorLog()
    with log:
        made = blank(0, 5, dtype=torch.float32) * 2
    assert made.shape == (0, 5)
    assert log.events == []


def test_real_tensors_are_logged_and_keep_their_values():
    log = TensorLog()
    with log:
        mask = torch.ones(10, dtype=torch.int64).cumsum(0)
    assert mask.tolist() == list(range(1, 11))
    assert sizes(log) == [80, 80, -80]


def test_a_large_real_result_loses_its_values_and_keeps_its_size():
    log = TensorLog()
    with log:
        small, large = torch.ones(2**20), torch.ones(2**20 + 1)
    assert type(small) is torch.Tensor
    assert isinstance(large, Blank)
    assert sizes(log) == [2**22, 2**22 + 4]
    assert log.live_bytes == 2**23 + 4


def test_what_was_there_before_is_added_once_and_named():
    log, weight = TensorLog(), blank(10, dtype=torch.float32)
    log.add(weight, "head.weight", "weights")
    log.add(weight.view(2, 5), "embedding.weight", "adapter")  # tied
    assert sizes(log) == [40]
    life = log.life_of(weight)
    assert (life.module, life.category) == ("head.weight", "weights")


def test_the_first_mark_counts():
    log, before = TensorLog(where=lambda: ("backward", "layer")), blank(10, dtype=torch.float32)
    with log:
        made = before * 2
        other = made * 2
    log.mark(made, "gradients", "layer.weight")
    log.mark(made.view(2, 5), "optimizer_state", "another")
    log.mark(other, "rest")
    log.mark(blank(3, dtype=torch.float32), "rest")  # never seen: nothing
    assert [(life.category, life.module) for life in log.lives] == [("gradients", "layer.weight"), ("rest", "layer")]
    assert log.life_of(blank(3, dtype=torch.float32)) is None


def test_a_decomposition_is_seen_in_place_of_its_operator():
    def product(first, second):
        return (first * 1).mul(second)

    log, seen = TensorLog(decompositions={aten.mm.default: product}), []
    log.on_operator = lambda func, args, kwargs, out: seen.append(str(func))
    before = blank(5, 5, dtype=torch.float32)
    with log:
        made = torch.mm(before, before)
    assert made.shape == (5, 5)
    assert sizes(log) == [100, 100, -100]
    assert seen == ["aten.mul.Tensor", "aten.mul.Tensor"]


def test_the_operator_is_told_with_arguments_and_result():
    told = []
    log = TensorLog(on_operator=lambda *all_of_it: told.append(all_of_it))
    first = blank(5, dtype=torch.float32)
    with log:
        made = torch.add(first, first, alpha=3)
    func, args, kwargs, out = told[0]
    assert func is aten.add.Tensor
    assert args[0] is first
    assert kwargs == {"alpha": 3}
    assert out is made


def test_what_an_operator_wrote_into_is_told_as_its_result():
    told = []
    log = TensorLog(on_operator=lambda func, args, kwargs, out: told.append(out is args[0]))
    base, other = blank(5, dtype=torch.float32), blank(5, dtype=torch.float32)
    with log:
        base.mul_(2)
        base.copy_(other)
        base.mul(2)
    assert told == [True, True, False]


def norm(hidden, scale):
    return scale * (hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6))


def network(seed):
    """A random network of linear layers, residuals, norms and casts; the width and depth are drawn too.

    None of its operators has a kernel that allocates more than its results: that a log does not see.
    """
    draw = random.Random(seed)
    width, rows = draw.choice([8, 16, 24]), draw.choice([4, 12])
    kinds = [draw.choice(["linear", "residual", "norm", "cast", "gelu", "dropout"]) for _ in range(draw.randint(4, 9))]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(width, width, bias=draw.random() < 0.5) for _ in kinds])
            self.scales = nn.ParameterList([torch.ones(width) for _ in kinds])

        def forward(self, hidden):
            for kind, layer, scale in zip(kinds, self.layers, self.scales, strict=True):
                if kind == "linear":
                    hidden = layer(hidden)
                elif kind == "residual":
                    hidden = hidden + torch.relu(layer(norm(hidden, scale)))
                elif kind == "norm":
                    hidden = norm(hidden, scale)
                elif kind == "cast":
                    hidden = hidden.double().float()
                elif kind == "gelu":
                    hidden = nn.functional.gelu(layer(hidden))
                else:
                    hidden = nn.functional.dropout(hidden, 0.5)
            return hidden.exp().mean()

    return Network, rows, width


@pytest.mark.parametrize("seed", range(12))
def test_a_random_network_allocates_on_blanks_what_it_allocates_on_real_tensors(seed):
    kind, rows, width = network(seed)
    model = kind()
    values = torch.randn(rows, width)

    def train(model, values):
        for _ in range(2):
            model(values).backward()

    real = [size for size in real_allocations(lambda: train(model, values)) if abs(size) > 8]
    kind, rows, width = network(seed)
    with torch.device("meta"):
        simulated = kind()
    make_blank(simulated)
    log = TensorLog()
    for name, parameter in simulated.named_parameters():
        log.add(parameter, name, "weights")
    before = len(log.events)
    with log:
        train(simulated, values)
    logged = [size for size in sizes(log)[before:] if abs(size) > 8]
    assert most_at_once(logged) == most_at_once(real)
    assert logged == real


def test_events_sum_to_what_lives():
    kind, rows, width = network(3)
    with torch.device("meta"):
        model = kind()
    make_blank(model)
    log = TensorLog()
    with log:
        loss = model(torch.randn(rows, width))
    assert sum(sizes(log)) == log.live_bytes > 0
    assert log.live_bytes == sum(life.bytes for life in log.lives if life.freed_at is None)
    assert min(accumulate(sizes(log))) >= 0
    loss.backward()
    del loss, model
    assert log.live_bytes == 0
