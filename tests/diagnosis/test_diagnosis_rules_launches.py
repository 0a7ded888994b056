"""Launches that the device waits for, float32 where 16 bits were asked for, and checkpointing that makes room."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.checkpointing import checkpointing_missing
from hf_efficient.diagnosis.rules.host import launch_bound
from hf_efficient.diagnosis.rules.precision import float32_products, silent_upcasts
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.memory_facts import GIB, memory
from tests.diagnosis.traces import MATMUL, kernels, leave_trace

SHORT = kernels(*((MATMUL, 10.0 * n, 10.0 * n + 5, 10.0 * n - 2) for n in range(1, 11)))
PHASES = {"forward": 0.3, "backward": 0.5, "optimizer": 0.2}
H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "supports_bf16": True}
QLORA = "recipe: {adapter: {method: qlora}}\nprovenance: {adapter.method: a}\n"


def on_cuda(tmp_path, trace=(), device_seconds=None, hfu_flops=None, model=None, recipe="", **arguments):
    """Twenty steps of 1 s, 0.8 s of them forward and backward."""
    if trace:
        leave_trace(tmp_path, trace)
    more = {} if device_seconds is None else {"device_seconds": device_seconds}
    if hfu_flops is not None:
        more["work"] = {"model_flops": hfu_flops, "hardware_flops": hfu_flops}
    facts = {"settings": settings(device=H100, model=model or {}, arguments=arguments)}
    if hfu_flops is not None:
        facts["work"] = {"peak_flops_per_second": 1e12, "dtype": "bf16"}
    steps = [step(n, phases=PHASES, **more) for n in range(1, 21)]
    return case_in(tmp_path, steps, facts=facts, recipe=recipe)


def test_a_trace_tells_that_the_device_waits_for_launches(tmp_path):
    found = launch_bound(on_cuda(tmp_path, SHORT))
    # 45 of 95 us are gaps of 5 us; of 16 s of forward and backward.
    assert found.title.endswith("in 47.4% of its time")
    assert found.confidence == "measured"
    assert found.cost.seconds == pytest.approx(16 * 45 / 95)
    assert [one.overrides for one in found.remedies] == [{"train.torch_compile": True}]
    assert found.remedies[0].gain.seconds == pytest.approx(8 * 45 / 95)


def test_the_records_tell_that_the_host_never_runs_ahead(tmp_path):
    device = {"forward": 0.3, "backward": 0.5, "optimizer": 0.2}
    found = launch_bound(on_cuda(tmp_path / "a", device_seconds=device, hfu_flops=10**11))
    assert found.confidence == "possible"
    assert found.cost.seconds is None
    assert found.remedies[0].gain is None
    ahead = {"forward": 0.6, "backward": 0.9, "optimizer": 0.2}  # the host is done long before the device
    assert launch_bound(on_cuda(tmp_path / "b", device_seconds=ahead, hfu_flops=10**11)) is None
    assert launch_bound(on_cuda(tmp_path / "c", device_seconds=device, hfu_flops=4 * 10**11)) is None  # 40% of the peak


def test_what_a_device_waits_for_is_not_judged_without_trace_or_events(tmp_path):
    assert isinstance(launch_bound(on_cuda(tmp_path / "a")), Abstention)
    assert launch_bound(case_in(tmp_path / "b", [step()])) is None  # a CPU
    assert launch_bound(on_cuda(tmp_path / "c", kernels((MATMUL, 0, 500, 0), (MATMUL, 500, 1000, 10)))) is None


def test_layers_that_multiply_in_float32_though_16_bits_were_asked_for(tmp_path):
    case = on_cuda(tmp_path, model={"matmul_dtype": "fp32"}, recipe=QLORA, bf16=True)
    found = silent_upcasts(case)
    assert found.title == "train.bf16 is on, and yet the layers multiply in float32"
    assert found.remedies[0].overrides == {"adapter.quantization.compute_dtype": "bfloat16"}
    assert found.remedies[0].gain.share > 0.5
    assert float32_products(case) is None  # told once


def test_kernels_of_float32_are_told_by_their_names(tmp_path):
    trace = kernels(("ampere_sgemm_128x64_tn", 0, 300, 0), (MATMUL, 300, 1000, 10))
    found = silent_upcasts(on_cuda(tmp_path / "a", trace, model={"matmul_dtype": "bf16"}, bf16=True))
    assert found.title == "30% of the device's time are float32 products, though 16 bits were asked for"
    # 67 TFLOP/s in float32 and 989 in bfloat16, as NVIDIA states them.
    assert found.remedies[0].gain.share == pytest.approx(0.3 * (1 - 67 / 989), rel=0.02)
    assert silent_upcasts(on_cuda(tmp_path / "b", kernels((MATMUL, 0, 1000, 0)), bf16=True)) is None


def test_upcasts_are_asked_for_in_16_bit_runs_alone_and_take_a_trace(tmp_path):
    assert isinstance(silent_upcasts(on_cuda(tmp_path / "a", bf16=True)), Abstention)
    assert silent_upcasts(on_cuda(tmp_path / "b", model={"matmul_dtype": "fp32"})) is None


def test_float32_on_a_device_with_tf32_has_two_ways_out(tmp_path):
    found = float32_products(on_cuda(tmp_path, model={"matmul_dtype": "fp32"}))
    assert [one.overrides for one in found.remedies] == [{"train.bf16": True}, {"train.tf32": True}]
    # TF32's 494.5 TFLOP/s against 67 in the products; nothing where memory is waited for.
    assert found.remedies[1].gain.seconds == pytest.approx(16 * (1 - 67 / 494.5), rel=0.02)


def full(tmp_path, fixed=0.1, each=0.0005, kept=9 * GIB, available=GIB, **model):
    """Eight micro-batches of one row of 30 or 50 tokens, ``fixed + each * tokens`` seconds, a quarter of it forward."""
    steps = []
    for number in range(1, 22):
        tokens = 30 if number % 2 else 50
        seconds = 8 * (fixed + each * tokens)
        phases = {"forward": seconds / 4, "backward": 3 * seconds / 4}
        steps.append(step(number, rows=8, processed=8 * tokens, phases=phases, micro_batches=8, length_buckets={}))
    held = {"activation_checkpointing": False, **model}
    arguments = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    facts = {
        "settings": settings(device={"type": "cpu", "memory_bytes": 16 * GIB}, model=held, arguments=arguments),
        "memory": memory(50, activations=kept, logits=0),
    }
    lines = [{"at_seconds": float(n), "rss_bytes": GIB, "host_available_bytes": available} for n in range(2, 5)]
    return case_in(tmp_path, steps, facts=facts, system=lines)


def test_activations_that_keep_the_micro_batch_tiny_are_to_be_checkpointed(tmp_path):
    found = checkpointing_missing(full(tmp_path))
    # 0.1 s fixed and 0.02 s for 40 tokens; 8 rows at once: 0.0125 + 0.02 = 0.0325, a quarter more for the forward.
    remedy = found.remedies[0]
    assert remedy.overrides == {
        "train.gradient_checkpointing": True,
        "train.per_device_train_batch_size": 8,
        "train.gradient_accumulation_steps": 1,
    }
    assert remedy.gain.share == pytest.approx(1 - 1.25 * 0.0325 / 0.12)
    assert remedy.gain.bytes == 9 * GIB - 9 * GIB // 30


def test_a_second_forward_must_be_worth_it(tmp_path):
    assert checkpointing_missing(full(tmp_path / "a", fixed=0.002)) is None
    assert checkpointing_missing(full(tmp_path / "b", available=8 * GIB)) is None  # there is room without
    assert checkpointing_missing(full(tmp_path / "c", activation_checkpointing=True)) is None
