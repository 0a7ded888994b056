"""Blank models and optimizers hold what the real ones hold."""

from contextlib import nullcontext

import bitsandbytes as bnb
import pytest
import torch
from plan_accuracy import real_peak
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.training_args import OptimizerNames

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning import simulation as simulation_module
from hf_efficient.planning.arguments import BitsAndBytesState, is_bitsandbytes, stand_in
from hf_efficient.planning.blank_model import blank_model, blank_quantized, plain_weights, quantization_constants
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.simulate.blank import Blank

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2")
METHODS = {
    "full": {"method": "full"},
    "lora": {"method": "lora"},
    "dora": {"method": "lora", "dora": True, "dropout": 0.1},
    "qlora": {"method": "qlora"},
    "qlora of a DoRA": {"method": "qlora", "dora": True},
    "qlora without double quantization": {
        "method": "qlora",
        "quantization": {"double_quant": False, "type": "fp4", "compute_dtype": "float32"},
    },
    "some modules": {"method": "lora", "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["embed_tokens"]},
    "a head to save": {"method": "qlora", "modules_to_save": ["lm_head"]},
    "biases": {"method": "lora", "bias": "all"},
}


def real_and_blank(recipe, *, checkpointing=False):
    real = add_adapter(load_base(recipe), recipe.adapter, seed=1, checkpointing=checkpointing)
    config = model_config(recipe.model)
    return real, blank_model(recipe, config, seed=1, checkpointing=checkpointing)


def tensors(model):
    """Shape, strides, dtype and whether it is trained, of everything that the model holds."""
    held = {name: (one, one.requires_grad) for name, one in model.named_parameters()}
    held |= {name: (one, None) for name, one in model.named_buffers()}
    for name, module in model.named_modules():
        held |= {f"{name}.constant{place}": (one, None) for place, one in enumerate(quantization_constants(module))}
    return {name: (tuple(one.shape), one.stride(), one.dtype, trained) for name, (one, trained) in held.items()}


def modules(model):
    return {name: type(module).__name__ for name, module in model.named_modules()}


EVERYWHERE = ("full", "lora", "dora", "qlora")
CASES = [(family, method) for family in FAMILIES for method in METHODS if method in EVERYWHERE or family == "qwen2"]
"""Qwen2 has biases and a tied head."""


@pytest.mark.parametrize(("family", "method"), CASES)
def test_every_tensor_is_that_of_the_real_model(family, method, recipe, saved):
    real, simulated = real_and_blank(recipe(saved(family), **METHODS[method]))
    assert tensors(simulated) == tensors(real)
    assert modules(simulated) == modules(real)
    assert all(isinstance(one, Blank) for one in simulated.parameters())


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("method", ["full", "qlora"])
def test_the_dtype_is_that_of_the_recipe_or_of_the_checkpoint(dtype, method, recipe, saved):
    real, simulated = real_and_blank(recipe(saved("llama"), method=method, dtype=dtype))
    assert tensors(simulated) == tensors(real)
    expected = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    assert simulated.get_input_embeddings().weight.dtype == expected


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_attention_is_that_of_the_recipe(attention, recipe, saved):
    real, simulated = real_and_blank(recipe(saved("llama"), attention=attention))
    assert simulated.config._attn_implementation == real.config._attn_implementation == attention


def test_an_attention_that_is_not_there_is_an_error(recipe, saved):
    wanted = recipe(saved("llama"), attention="no_such_attention")
    with pytest.raises((ModelError, SetupError), match=r"^model"):
        blank_model(wanted, model_config(wanted.model), seed=0, checkpointing=False)


def blank_layer(outputs, inputs, *, double, kind="nf4", dtype=torch.bfloat16):
    with torch.device("meta"):
        layer = bnb.nn.Linear4bit(inputs, outputs, bias=False, compress_statistics=double, quant_type=kind)
    model = nn.Sequential(layer)
    plain_weights(model, dtype)
    blank_quantized(model, dtype)
    return layer


def looks(weight, state):
    """Shapes, dtypes and settings of a quantized weight."""
    inner = state.state2
    held = [weight, state.absmax, state.code, state.offset, *(() if inner is None else (inner.absmax, inner.code))]
    tensors = [None if one is None else (one.shape, one.dtype) for one in held]
    settings = state.shape, state.dtype, state.blocksize, state.quant_type, state.nested, inner and inner.blocksize
    return tensors, settings


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("double", [True, False], ids=["double", "single"])
@pytest.mark.parametrize("shape", [(3, 65), (5, 13), (17, 1000), (256, 257), (512, 384)], ids=str)
def test_weight_and_constants_are_those_of_a_really_quantized_weight(shape, double, kind):
    weight = torch.randn(shape, dtype=torch.bfloat16)
    packed, state = bnb.functional.quantize_4bit(weight, quant_type=kind, compress_statistics=double)
    layer = blank_layer(*shape, double=double, kind=kind)
    assert looks(layer.weight, layer.weight.quant_state) == looks(packed, state)
    assert (state.state2 is None) == (not double)


@pytest.mark.parametrize(("double", "constants"), [(True, 262_144 + 4096 + 64 + 1024 + 4), (False, 4 * 262_144 + 64)])
def test_bytes_by_hand(double, constants):
    # 4096 x 4096 values: half a byte each; 262,144 blocks of 64; 1,024 blocks of 256 of those; tables of 16 and of 256
    layer = blank_layer(4096, 4096, double=double)
    assert layer.weight.shell.untyped_storage().nbytes() == 8 * 2**20
    held = quantization_constants(layer)
    assert sum(one.shell.untyped_storage().nbytes() for one in held) == constants


STORED = {"gradient_checkpointing": False, "per_device_train_batch_size": 8}


@pytest.fixture
def eight_bit(recipe, saved):
    def build(family="llama", train=STORED, **adapter):
        return recipe(saved(family), "qlora", train, quantization={"bits": 8}, **adapter)

    return build


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_every_weight_is_that_of_the_real_model(eight_bit, family):
    wanted = eight_bit(family)
    real = load_base(wanted)
    planned = blank_model(wanted, model_config(wanted.model), seed=0, checkpointing=False).get_base_model()
    own = {name.replace(".base_layer", ""): one for name, one in planned.named_parameters() if "lora_" not in name}
    assert {name: (one.shape, one.dtype) for name, one in real.named_parameters()} == {
        name: (one.shape, one.dtype) for name, one in own.items()
    }
    layers = [layer for layer in planned.modules() if quantization_constants(layer)]
    assert len(layers) == 2 * 7  # all linear ones of two layers
    real_layer = real.model.layers[0].mlp.down_proj
    constants = real_layer.weight.SCB if real_layer.state.SCB is None else real_layer.state.SCB
    (planned_constants,) = quantization_constants(planned.model.layers[0].mlp.down_proj.base_layer)
    assert (planned_constants.shape, planned_constants.dtype) == (constants.shape, constants.dtype)


@pytest.mark.parametrize("train", [STORED, {**STORED, "gradient_checkpointing": True}, {**STORED, "bf16": True}])
def test_the_peak_of_a_cpus_kernels_is_the_real_one(eight_bit, monkeypatch, train):
    monkeypatch.setattr(simulation_module, "kernels_of_a_gpu", nullcontext)
    wanted = eight_bit(train=train)
    config = model_config(wanted.model)
    planned = planned_memory(simulate(wanted, config, 64)).peak_allocated_bytes
    assert planned == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_a_gpus_kernels_sum_in_int32(eight_bit):
    wanted = eight_bit()
    found = simulate(wanted, model_config(wanted.model), 64)
    rows = 8 * 64
    sums = {life.shape for life in found.log.lives if "int8_linear_matmul" in life.operator}
    assert sums == {(rows, 64), (rows, 32), (rows, 160)}
    assert all(life.bytes == 4 * life.shape[0] * life.shape[1] for life in found.log.lives if life.dtype == torch.int32)
    products = [one for one in found.operators if one.name.endswith("int8_linear_matmul")]
    assert {(one.family, one.dtype) for one in products} == {("matmul", "int8")}
    linear = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160)
    assert sum(one.flops for one in products) == 2 * rows * linear  # of the forward; the backward is in 16 bits


NAMES = [one.value for one in OptimizerNames if is_bitsandbytes(one.value)]


class Model(nn.Module):
    """Parameters below, at and above the sizes at which something changes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(70, 80)
        self.head = nn.Linear(80, 70, bias=False)
        self.tied = nn.Linear(80, 70, bias=False)
        self.tied.weight = self.embedding.weight
        self.below = nn.Parameter(torch.randn(63, 65))  # 4,095 values
        self.at = nn.Parameter(torch.randn(64, 64))
        self.odd = nn.Parameter(torch.randn(70, 71))
        self.frozen = nn.Parameter(torch.randn(70, 70), requires_grad=False)
        self.norm = nn.LayerNorm(8)


def bytes_of(optimizer, model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: sum(
            value.untyped_storage().nbytes()
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and not key.startswith("qmap")  # tables that all parameters share
        )
        for parameter, state in optimizer.state.items()
    }


def stepped(optimizer, model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return bytes_of(optimizer, model)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_as_large_as_that_of_the_trainers_optimizer(name, recipe, tmp_path):
    model = Model()
    trainer = Trainer(model, TrainingArguments(str(tmp_path), optim=name, use_cpu=True, report_to=[]))
    real = trainer.create_optimizer()
    assert isinstance(real, bnb.optim.optimizer.Optimizer8bit)
    stood = stand_in(recipe(train={"optim": name}), model)
    assert stepped(stood, model) == stepped(real, model)
    assert stepped(stood, model) == stepped(real, model)  # the second step adds nothing
    assert stood.paged_bytes == 0


@pytest.mark.parametrize(
    ("moments", "eight_bit", "paged", "inside", "outside"),
    [
        # 400 x 250 = 100,000 values in 391 blocks of 256
        ((1, 1), True, False, 2 * (100_000 + 4 * 391), 0),
        ((1, 1), True, True, 2 * 4 * 391, 2 * 100_000),
        ((1, 1), False, True, 0, 2 * 4 * 100_000),
        ((2, 1), True, True, 3 * 4 * 391, 3 * 100_000),
        ((1,), False, False, 4 * 100_000, 0),
    ],
)
def test_bytes_inside_and_outside_of_the_allocator_by_hand(moments, eight_bit, paged, inside, outside):
    weight = nn.Parameter(torch.randn(400, 250))
    weight.grad = torch.randn_like(weight)
    optimizer = BitsAndBytesState([weight], moments=moments, eight_bit=eight_bit, paged=paged)
    for _ in range(2):
        optimizer.step()
        held = sum(value.untyped_storage().nbytes() for value in optimizer.state[weight].values())
        assert (held, optimizer.paged_bytes) == (inside, outside)
