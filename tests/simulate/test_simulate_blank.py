"""Blank tensors behave as real ones, without memory."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from hf_efficient.simulate.blank import Blank, blank, make_blank
from hf_efficient.simulate.tensor_log import TensorLog


def looks(tensor):
    return (tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device.type)


def storage_of(tensor):
    return tensor.shell.untyped_storage()._cdata


CODE = {
    "matrix product": lambda a, b: a @ b.t(),
    "broadcast": lambda a, b: a[:, None] * b[None],
    "types promoted": lambda a, b: a + b.to(torch.bfloat16),
    "half": lambda a, b: (a > b).half(),
    "reduced": lambda a, b: a.sum(0, keepdim=True),
    "index of the largest": lambda a, b: a.argmax(-1),
    "transposed": lambda a, b: a.t(),
    "slice": lambda a, b: a[1:, ::2],
    "expanded": lambda a, b: a[:1].expand(7, 6),
    "unfolded": lambda a, b: a.reshape(2, 2, 6).permute(2, 0, 1),
    "contiguous": lambda a, b: a.t().contiguous(),
    "softmax in float32": lambda a, b: functional.softmax(a.bfloat16(), -1, dtype=torch.float32),
    "list of tensors": lambda a, b: torch.cat([a, b, a], dim=1),
    "several results": lambda a, b: torch.topk(a, 2)[1],
    "parts": lambda a, b: a.split(4, dim=1)[1],
    "made like": lambda a, b: torch.zeros_like(a, dtype=torch.uint8),
    "made by": lambda a, b: a.new_zeros(3, dtype=torch.float64),
    "embedding": lambda a, b: functional.embedding(torch.tensor([[1, 2, 3]]), a),
    "layer norm": lambda a, b: functional.layer_norm(a, (6,)),
    "loss": lambda a, b: functional.cross_entropy(a, torch.tensor([1, 2, 3, 0])),
}


@pytest.mark.parametrize("code", CODE.values(), ids=CODE)
def test_a_result_looks_like_the_real_one(code):
    real = code(torch.randn(4, 6), torch.randn(4, 6))
    for _ in range(2):  # the second time its shape is remembered
        found = code(blank(4, 6, dtype=torch.float32), blank(4, 6, dtype=torch.float32))
        assert isinstance(found, Blank)
        assert looks(found) == looks(real)


def test_views_writes_in_place_and_new_tensors():
    base = blank(4, 6, dtype=torch.float32)
    for code in ("a[1:]", "a.t()", "a.view(24)", "a.detach()", "a.reshape(3, 8)", "a.expand(2, 4, 6)"):
        for _ in range(2):
            assert storage_of(eval(code, {"a": base})) == storage_of(base), code
    for code in ("a.clone()", "a * 2", "a.t().reshape(24)", "a.to(torch.bfloat16)", "a.t().contiguous()"):
        kept = [eval(code, {"a": base, "torch": torch}) for _ in range(3)]
        assert len({storage_of(base), *map(storage_of, kept)}) == 4, code
    for code in ("a.mul_(2)", "a.add_(a)", "a.copy_(torch.ones(4, 6))", "torch.add(a, 1, out=a)", "a.clamp_(min=0)"):
        assert eval(code, {"a": base, "torch": torch}) is base, code


def test_a_real_tensor_beside_a_blank_gives_a_blank_and_alone_keeps_its_values():
    real = torch.arange(6.0)
    assert isinstance(real + blank(6, dtype=torch.float32), Blank)
    assert isinstance(blank(6, dtype=torch.float32) + real, Blank)
    assert (real + 1).tolist() == [1, 2, 3, 4, 5, 6]
    assert real.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, 1.0), (torch.bfloat16, 1.0), (torch.int64, 1), (torch.bool, False)]
)
def test_a_scalar_read_is_one_or_false(dtype, value):
    read = blank(dtype=dtype).item()
    assert read == value
    assert type(read) is type(value)


def test_autocast_casts_as_on_a_cpu():
    def code(values, weight):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = functional.linear(values, weight)
            return product.dtype, functional.softmax(product, -1).dtype, (product + values).dtype

    shapes = ((4, 6), (6, 6))
    real = code(*[torch.randn(shape) for shape in shapes])
    assert code(*[blank(*shape, dtype=torch.float32) for shape in shapes]) == real
    assert real[0] == torch.bfloat16


def test_gradients_have_the_shape_dtype_and_class_of_their_tensors():
    weight = torch.nn.Parameter(blank(5, 6, dtype=torch.bfloat16))
    bias = torch.nn.Parameter(blank(5, dtype=torch.bfloat16))
    values = blank(4, 6, dtype=torch.bfloat16)
    functional.linear(values, weight, bias).float().exp().sum().backward()
    assert isinstance(weight.grad, Blank)
    assert looks(weight.grad) == looks(weight)
    assert looks(bias.grad) == looks(bias)
    assert values.grad is None


def test_operators_on_lists_write_into_each():
    several = [blank(3, dtype=torch.float32), blank(4, dtype=torch.float32)]
    before = [storage_of(one) for one in several]
    torch._foreach_mul_(several, 2.0)
    assert [storage_of(one) for one in several] == before
    norms = torch._foreach_norm(several)
    assert [looks(one)[0] for one in norms] == [(), ()]
    assert all(isinstance(one, Blank) for one in norms)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_adamw_steps_and_keeps_two_moments(options):
    def state(weight):
        optimizer = torch.optim.AdamW([weight], lr=0.1, **options)
        for _ in range(2):
            (weight * 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return {name: looks(value) for name, value in optimizer.state[weight].items()}

    real = state(torch.nn.Parameter(torch.randn(3, 4)))
    assert state(torch.nn.Parameter(blank(3, 4, dtype=torch.float32))) == real
    assert set(real) == {"step", "exp_avg", "exp_avg_sq"}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 10, dtype=torch.bfloat16)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("table", torch.ones(3, 5).t())
        self.register_parameter("nothing", None)
        self.register_buffer("none", None)


def test_what_becomes_blank():
    with torch.device("meta"):
        model = Tied()
    make_blank(model)
    assert all(isinstance(one, Blank) for one in [*model.parameters(), *model.buffers()])
    assert all(isinstance(one, nn.Parameter) for one in model.parameters())
    assert model.head.weight is model.embedding.weight
    assert (model.head.weight.dtype, model.head.weight.requires_grad) == (torch.bfloat16, True)
    assert not model.head.bias.requires_grad
    assert (tuple(model.table.shape), model.table.stride()) == ((5, 3), (1, 5))
    assert model.nothing is None
    assert model.none is None
    with torch.device("meta"):
        model = Tied()
    model.table = torch.arange(3)
    kept = model.head.bias = nn.Parameter(torch.ones(10))
    make_blank(model)
    assert model.head.bias is kept
    assert model.table.tolist() == [0, 1, 2]
    assert isinstance(model.embedding.weight, Blank)


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


def test_masks_that_no_machine_could_hold_and_small_ones():
    places = torch.arange(2**20)
    log = TensorLog()
    log.add(places, "positions", "rest")
    with log:
        mask = (places[:, None] >= places[None]) & (places[:, None] < 2**20 - places[None])
    assert isinstance(mask, Blank)
    assert (mask.shape, mask.dtype) == ((2**20, 2**20), torch.bool)
    assert max(size for _, size in log.events) == 2**40
    places, _ = logged(lambda: torch.arange(1000) * 2)
    mask, _ = logged(lambda: places[:, None] > places[None])
    assert int(mask.sum()) == 999 * 1000 // 2
    assert float(logged(lambda: torch.eye(1024).sum())[0]) == 1024
