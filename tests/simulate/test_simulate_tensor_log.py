"""What the log sees, which module runs, the peak that it comes to, and gradients that autograd adds up in place."""

from collections import defaultdict

import pytest
import torch
from real_allocations import real_allocations
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from hf_efficient.simulate.blank import Blank, blank
from hf_efficient.simulate.tensor_log import (
    ModuleNames,
    StorageLife,
    TensorLog,
    category_of,
    find_peak,
    phase_peaks,
    timeline,
)

aten = torch.ops.aten


def sizes(log):
    return [size for _, size in log.events]


def test_what_a_log_knows():
    log, before = TensorLog(), blank(100, dtype=torch.float32)
    with log:
        a = before * 1  # 400 bytes
        b = (a * 2).bfloat16()  # 400, 200, and the product goes
        del a
        c = torch.cat([b, b])  # 400
        del b
    assert sizes(log) == [400, 400, 200, -400, -400, 400, -200]
    assert [index for index, _ in log.events] == [0, 1, 2, 1, 0, 3, 2]
    assert sum(sizes(log)) == 400
    assert find_peak(log).bytes == 1000
    del c
    assert sum(sizes(log)) == 0
    log, before = TensorLog(where=lambda: ("forward", "layers.0")), blank(4, 8, dtype=torch.bfloat16)
    with log:
        made = before * 2
    (life,) = log.lives
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


def test_a_large_real_result_loses_its_values_and_keeps_its_size():
    log = TensorLog()
    with log:
        small, large = torch.ones(2**20), torch.ones(2**20 + 1)
    assert type(small) is torch.Tensor
    assert isinstance(large, Blank)
    assert sizes(log) == [2**22, 2**22 + 4]


def test_what_is_added_and_marked():
    log, weight = TensorLog(), blank(10, dtype=torch.float32)
    log.add(weight, "head.weight", "weights")
    log.add(weight.view(2, 5), "embedding.weight", "adapter")  # tied
    assert sizes(log) == [40]
    (life,) = log.lives
    assert (life.module, life.category) == ("head.weight", "weights")
    log, before = TensorLog(where=lambda: ("backward", "layer")), blank(10, dtype=torch.float32)
    with log:
        made = before * 2
        other = made * 2
    log.mark(made, "gradients", "layer.weight")
    log.mark(made.view(2, 5), "optimizer_state", "another")
    log.mark(other, "rest")
    log.mark(blank(3, dtype=torch.float32), "rest")  # never seen: nothing
    assert [(life.category, life.module) for life in log.lives] == [("gradients", "layer.weight"), ("rest", "layer")]


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


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Model(nn.Module):
    def __init__(self, checkpointing=None):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3, bias=False)
        self.checkpointing = checkpointing

    def forward(self, hidden):
        for block in self.blocks:
            if self.checkpointing is None:
                hidden = block(hidden)
            else:
                hidden = checkpoint(block, hidden, use_reentrant=self.checkpointing == "reentrant")
        return self.head(hidden).exp().sum()


class Seen(TorchDispatchMode):
    """The operators of each module, apart where a forward runs."""

    def __init__(self, names):
        super().__init__()
        self.names = names
        self.by_module = defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view:
            self.by_module[(self.names.in_forward, self.names.current())].append(func.__name__.split(".")[0])
        return func(*args, **(kwargs or {}))


def products(seen, in_forward):
    """Matrix products by module."""
    return {
        module: operators.count("mm")
        for (forward, module), operators in seen.by_module.items()
        if forward == in_forward and "mm" in operators
    }


LINEARS = ["blocks.0.up", "blocks.0.down", "blocks.1.up", "blocks.1.down", "head"]
VALUES = torch.ones(5, 4)


def test_which_module_runs():
    model = Model()
    names = ModuleNames(model)
    with Seen(names) as seen:
        assert names.current() == ""
        loss = model(VALUES)
        assert (names.in_forward, names.current()) == (False, "")
    assert loss.requires_grad
    assert products(seen, in_forward=True) == dict.fromkeys(LINEARS, 1)
    assert seen.by_module[(True, "blocks.0")] == ["relu", "add"]
    assert seen.by_module[(True, "")] == ["exp", "sum"]
    model = Model()
    names = ModuleNames(model)
    for _ in range(2):  # the numbers go on from step to step
        loss = model(VALUES)
        with Seen(names) as seen:
            loss.backward()
        assert products(seen, in_forward=True) == {}
        # the first layer's input needs no gradient
        assert products(seen, in_forward=False) == {**dict.fromkeys(LINEARS, 2), "blocks.0.up": 1}
        assert "threshold_backward" in seen.by_module[(False, "blocks.1")]


@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_a_recomputation_counts_as_a_forward_and_its_backward_keeps_its_modules(kind):
    model = Model(kind)
    names = ModuleNames(model)
    values = VALUES.clone().requires_grad_()
    for _ in range(2):
        loss = model(values)
        with Seen(names) as seen:
            loss.backward()
        again = products(seen, in_forward=True)
        assert {module: again[module] for module in LINEARS[:1]} == {"blocks.0.up": 1}
        assert set(again) <= set(LINEARS[:-1])
        assert products(seen, in_forward=False) == dict.fromkeys(LINEARS, 2)


def life(size, phase="forward", shape=(4, 8), born_at=0, freed_at=None, category=""):
    return StorageLife(size, shape, torch.float32, "aten.mul.Tensor", phase, "layer", born_at, freed_at, category)


def log_of(*events, phases=None):
    """Events by (index, bytes); a storage is born where its bytes are positive."""
    log = TensorLog()
    for place, (index, size) in enumerate(events):
        if size > 0:
            log.lives.append(life(size, (phases or {}).get(index, "forward"), born_at=place))
        else:
            log.lives[index].freed_at = place + 1
        log.events.append((index, size))
    return log


EVENTS = ((0, 100), (1, 50), (1, -50), (2, 70), (3, 20), (2, -70), (0, -100), (4, 160), (4, -160), (5, 10))


def test_peaks():
    log = log_of(*EVENTS)
    peak = find_peak(log)
    assert (peak.bytes, peak.event) == (190, 5)
    assert peak.life is log.lives[3]
    assert sum(one.bytes for one in log.lives if one.lives_at(peak.event)) == 190
    phases = {0: "setup", 1: "setup", 2: "forward", 3: "backward", 4: "optimizer", 5: "optimizer"}
    assert phase_peaks(log_of(*EVENTS, phases=phases)) == {
        "setup": 150,
        "forward": 170,
        "backward": 190,
        "optimizer": 180,
    }


@pytest.mark.parametrize(
    ("one", "category"),
    [
        (life(1, category="gradients", shape=(4, 96)), "gradients"),  # said counts first
        (life(1, shape=(2, 5, 96)), "logits"),
        (life(1, "backward", shape=(2, 5, 96)), "logits"),
        (life(1, "recompute", shape=(10, 96)), "logits"),
        (life(1, shape=(96,)), "rest"),  # one dimension: a norm, a table
        (life(1, "recompute"), "activations"),
        (life(1, "forward", born_at=3, freed_at=30), "activations"),  # kept for the backward at 20
        (life(1, "forward", born_at=3, freed_at=20), "rest"),  # freed before it
        (life(1, "forward", born_at=3), "activations"),
        (life(1, "forward", born_at=25, freed_at=30), "rest"),  # freed before its own backward at 40
        (life(1, "forward", born_at=25, freed_at=41), "activations"),
        (life(1, "forward", born_at=50), "rest"),  # no backward comes
        (life(1, "backward"), "rest"),
        (life(1, "optimizer"), "rest"),
    ],
)
def test_what_a_storage_is_used_for(one, category):
    starts = () if one.shape == (96,) else (20, 40)
    assert category_of(one, starts, vocabulary=96) == category


def by_index(life):
    return "odd" if life.bytes in (50, 20) else "even"


def test_a_timeline():
    """Stretches of four events: 100 150 100 170 | 190 120 20 180 | 20 30."""
    found = timeline(log_of(*EVENTS), by_index, most=3)
    assert [(moment.event, sum(moment.categories.values())) for moment in found] == [(4, 170), (5, 190), (10, 30)]
    found = timeline(log_of(*EVENTS), by_index, start=6, most=2)
    assert [(moment.event, moment.categories) for moment in found] == [
        (8, {"even": 160, "odd": 20}),
        (10, {"even": 10, "odd": 20}),
    ]


_SCALARS = 8
"""Bytes of the tensors that torch makes of a number in the code, which only the profiler sees."""


def used_four_times(weight, values):
    for _ in range(4):
        values = (values @ weight).relu()
    values.exp().sum().backward()


def residual_connections(weight, values):
    hidden = values @ weight
    for _ in range(3):
        hidden = hidden + torch.relu(hidden @ weight)
    hidden.exp().sum().backward()


def two_backwards(weight, values):
    for _ in range(2):
        (values @ weight).exp().sum().backward()


def one_gradient_for_two(weight, values):
    left, right = values @ weight, values @ weight
    ((left + right).exp() + left.sin() + right.cos()).sum().backward()


def a_gradient_that_a_hook_holds(weight, values):
    held = []
    hidden = values @ weight
    hidden.register_hook(held.append)
    (torch.relu(hidden) + hidden.exp()).sum().backward()
    return held


def a_gradient_that_a_view_holds(weight, values):
    held = []
    hidden = values @ weight
    hidden.register_hook(lambda gradient: held.append(gradient.t()))
    branch = torch.relu(hidden)
    branch.register_hook(lambda gradient: held.append(gradient.t()))
    (branch.exp() + branch.sin()).sum().backward()
    return held


def a_view_of_the_first_gradient_held(weight, values):
    held = []

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            return hidden.clone()

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient * 2
            held.append(gradient.view(-1))
            return gradient

    hidden = values @ weight
    (hidden.sin() + Keeps.apply(hidden).exp()).sum().backward()
    return held


def gradients_expanded(weight, values):
    hidden = values @ weight
    (hidden.sin().sum() + hidden.sum()).backward()
    hidden = values @ weight
    (hidden.sum() + hidden.sin().sum()).backward()


def recomputed_sums(weight, values):
    def layer(hidden):
        return (hidden @ weight) + torch.relu(hidden)

    hidden = values @ weight
    for reentrant in (False, True):
        hidden = checkpoint(layer, hidden, use_reentrant=reentrant, preserve_rng_state=False)
    hidden.exp().sum().backward()


def gradients_asked_for(weight, values):
    hidden = values @ weight
    return torch.autograd.grad((hidden.exp() + hidden.sin()).sum(), [weight])


@pytest.mark.parametrize(
    "code",
    [
        used_four_times,
        residual_connections,
        two_backwards,
        one_gradient_for_two,
        a_gradient_that_a_hook_holds,
        a_gradient_that_a_view_holds,
        a_view_of_the_first_gradient_held,
        gradients_expanded,
        recomputed_sums,
        gradients_asked_for,
    ],
)
def test_the_engine_allocates_for_blanks_what_it_does_for_real_tensors(code):
    weight = torch.randn(16, 16, requires_grad=True)
    values = torch.randn(8, 16)
    real = [size for size in real_allocations(lambda: code(weight, values)) if abs(size) > _SCALARS]
    logged = [size for size in blank_allocations(code) if abs(size) > _SCALARS]
    assert logged == real


def blank_allocations(code):
    weight = blank(16, 16, dtype=torch.float32).requires_grad_()
    values = blank(8, 16, dtype=torch.float32)
    log = TensorLog()
    log.add(weight, "weight", "weights")
    log.add(values, "values", "activations")
    with log:
        kept = code(weight, values)
    events = [size for _, size in log.events[2:]]
    del kept
    return events


def test_an_addition_outside_the_engine_never_writes_into_its_argument():
    first, second = blank(4, dtype=torch.float32), blank(4, dtype=torch.float32)
    assert (first + second) is not first
