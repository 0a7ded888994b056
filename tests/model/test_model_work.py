"""How a live model computes: its attention, what it computes twice, in which dtype, against which peak."""

import functools
from types import SimpleNamespace

import bitsandbytes
import pytest
import torch
from live_models import adapted, live
from torch.utils.checkpoint import checkpoint
from trl.models import enable_selective_activation_checkpointing

from hf_efficient.errors import ModelError
from hf_efficient.facts.tables import accelerator
from hf_efficient.model.work import Peak, accelerators_of, checkpointing_of, kernel_of, matmul_dtype, peak_of

BY_DOCUMENTS = ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn2", "flex_attention")


def test_the_attention_kernel():
    model, dropping = adapted(live()), live(attention_dropout=0.1)
    for name, kernel in {"eager": "square", "sdpa": "sdpa", **dict.fromkeys(BY_DOCUMENTS, "documents")}.items():
        model.config._attn_implementation = name
        assert kernel_of(model, "cuda") == kernel_of(model, "cpu") == kernel, name
    dropping.config._attn_implementation = "sdpa"  # whose kernel for CPUs knows no dropout
    assert (kernel_of(dropping, "cpu"), kernel_of(dropping, "cuda")) == ("square", "sdpa")


def checkpointed(**options):
    model = live(num_hidden_layers=3)
    model.activation_checkpointing_enable(**options)
    return model


def test_the_way_of_checkpointing():
    for options, found in (
        ({}, ("non_reentrant", None)),
        ({"activation_checkpointing_kwargs": {"use_reentrant": True}}, ("reentrant", None)),
        ({"every_n_layers": 2}, ("non_reentrant", frozenset({0, 2}))),
    ):
        model = checkpointed(**options)
        assert checkpointing_of(model) == checkpointing_of(adapted(model)) == found
    model = checkpointed()
    model.activation_checkpointing_disable()
    assert checkpointing_of(live()) == checkpointing_of(model) == ("none", None)


def selective():
    model = live()
    enable_selective_activation_checkpointing(model)
    model.gradient_checkpointing_enable()
    return model


def own_function():
    model = checkpointed()
    for layer in model.model.layers:
        layer._gradient_checkpointing_func = checkpoint
    return model


def mixed():
    model = checkpointed()
    model.model.layers[1]._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=True)
    return model


def test_what_is_computed_again_is_not_guessed_at():
    for build, told in (
        (selective, "the selective way"),
        (own_function, "a function of its own"),
        (mixed, "in different ways"),
        (lambda: checkpointed(activation_checkpointing_kwargs={"preserve_rng_state": True}), "use_reentrant"),
    ):
        with pytest.raises(ModelError, match=told):
            checkpointing_of(build())


def model_of(dtype=torch.float32, quantization=None, layers=()):
    """A base of 100 weights in this dtype and an adapter of 10 in float32."""
    model = torch.nn.ModuleList([torch.nn.Linear(10, 10, dtype=dtype), torch.nn.Linear(10, 1), *layers])
    method = None if quantization is None else SimpleNamespace(quant_method=quantization)
    model.config = SimpleNamespace(quantization_config=method)
    return model


def trainer_of(model, mixed="no", device="cpu", n_gpu=1):
    args = SimpleNamespace(device=torch.device(device), n_gpu=n_gpu)
    return SimpleNamespace(model=model, args=args, accelerator=SimpleNamespace(mixed_precision=mixed))


def four_bit(compute_dtype):
    return bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=compute_dtype)


def test_autocast_decides_and_without_it_the_weights():
    for dtype, expected in {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.items():
        assert matmul_dtype(trainer_of(model_of(dtype))) == expected
        assert matmul_dtype(trainer_of(model_of(dtype), "bf16")) == "bf16"
        assert matmul_dtype(trainer_of(model_of(dtype), "fp16")) == "fp16"


@pytest.mark.parametrize(("precision", "expected"), [("tf32", "tf32"), ("ieee", "fp32"), ("none", "fp32")])
def test_tf32_where_torch_may(monkeypatch, precision, expected):
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=precision))
    monkeypatch.setattr(torch.backends, "fp32_precision", "none")
    assert matmul_dtype(trainer_of(model_of(), device="cuda")) == expected
    assert matmul_dtype(trainer_of(model_of(torch.bfloat16), device="cuda")) == "bf16"
    assert matmul_dtype(trainer_of(model_of(), device="cpu")) == "fp32"


@pytest.mark.parametrize(
    ("compute", "weights", "expected"),
    [(torch.bfloat16, torch.float32, "bf16"), (torch.float32, torch.bfloat16, "fp32"), (None, torch.bfloat16, "bf16")],
)
def test_four_bit_layers_multiply_in_their_compute_dtype(compute, weights, expected):
    model = model_of(weights, "bitsandbytes", [four_bit(compute)])
    assert matmul_dtype(trainer_of(model)) == expected
    assert matmul_dtype(trainer_of(model, "bf16")) == expected


def test_a_dtype_that_is_not_one_is_not_guessed_at():
    for trainer, told in (
        (trainer_of(model_of(), "fp8"), "mixed precision 'fp8'"),
        (trainer_of(model_of(torch.float64)), "the matrix products run in torch.float64, not in one known dtype"),
        (trainer_of(model_of(quantization="gptq")), "weights quantized by gptq"),
        (trainer_of(model_of(quantization="bitsandbytes")), "8-bit layers multiply in int8"),
        (
            trainer_of(model_of(quantization="bitsandbytes", layers=[four_bit(torch.float32), four_bit(torch.half)])),
            "the matrix products run in torch.float16, torch.float32",
        ),
    ):
        with pytest.raises(ModelError, match=f"^{told}"):
            matmul_dtype(trainer)


def test_a_device_of_the_table(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    found = peak_of(torch.device("cuda"), "bf16")
    assert found.flops_per_second == accelerator("H100 SXM").peak_flops_per_second["bf16"] == 989.4e12
    assert found.source.startswith("H100 SXM, dense, stated by NVIDIA: ")
    assert (found.estimated, found.reason) == (False, None)


UNKNOWN = {
    "NVIDIA H200 MIG 1g.18gb": "the peak of 'NVIDIA H200 MIG 1g.18gb' is not known here",
    "Tesla T4": "the peak of T4 in bf16 is not stated",
}


def test_an_unknown_peak_says_why(monkeypatch):
    for name, reason in UNKNOWN.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert peak_of(torch.device("cuda"), "bf16") == Peak(reason=reason)
    assert peak_of(torch.device("xpu"), "bf16") == Peak(reason="no peak is known of a device of type 'xpu'")


@pytest.mark.parametrize(
    ("placed", "n_gpu", "expected"),
    [(None, 0, 1), (None, 1, 1), ({"": 0}, 1, 1), ({"a": 0, "b": 1, "c": "cpu"}, 1, 2), (None, 4, 4)],
)
def test_accelerators_of_a_process(placed, n_gpu, expected):
    model = model_of()
    if placed is not None:
        model.hf_device_map = placed
    assert accelerators_of(trainer_of(model, n_gpu=n_gpu)) == expected
