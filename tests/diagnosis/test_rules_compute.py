"""What is computed operator by operator, twice, in float32, or launched kernel by kernel."""

import pytest

from hf_efficient.diagnosis.rules.checkpointing import checkpointing_missing, checkpointing_unneeded
from hf_efficient.diagnosis.rules.compute import (
    attention_kernel,
    float32_products,
    optimizer_kernel,
    recompilation,
    silent_upcasts,
)
from hf_efficient.diagnosis.rules.host import launch_bound
from hf_efficient.diagnosis.rules.machine import throttling
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import GIB, MATMUL, case_in, judged, kernels, leave_trace, memory, settings, step


def optimizing(seconds, **more):
    return [step(n, phases={"forward": 0.4, "backward": 0.6, "optimizer": seconds}, **more) for n in range(1, 11)]


def not_fused(device="cpu", **optimizer):
    held = {"class": "AdamW", "fused": False, **optimizer}
    return {"settings": settings(optimizer=held, device={"type": device}, arguments={"optim": "adamw_torch"})}


def test_an_optimizer_that_is_not_fused_is_found_with_two_thirds_of_its_time(tmp_path):
    found = optimizer_kernel(case_in(tmp_path, optimizing(1.0), facts=not_fused()))
    assert found.title == "the optimizer takes 50% of the loop, operator by operator: it is not fused"
    judged(found, overrides={"train.optim": "adamw_torch_fused"}, share=1 / 3, cost=10)


def test_a_fused_short_or_other_optimizer_is_no_finding(tmp_path):
    assert optimizer_kernel(case_in(tmp_path / "a", optimizing(1.0), facts=not_fused(fused=True))) is None
    assert optimizer_kernel(case_in(tmp_path / "b", optimizing(0.05), facts=not_fused())) is None
    assert optimizer_kernel(case_in(tmp_path / "c", optimizing(1.0), facts=not_fused(**{"class": "SGD"}))) is None
    assert optimizer_kernel(case_in(tmp_path / "d", optimizing(1.0), facts=not_fused("mps"))) is None


def long_rows(square, linear=1e-4, lengths=(1000, 1500, 2000), more=None):
    """One row a step; ``linear * tokens + square * tokens ** 2`` seconds."""
    made = []
    for number in range(1, 22):
        tokens = lengths[number % len(lengths)]
        seconds = linear * tokens + square * tokens**2
        phases = {"forward": seconds / 3, "backward": 2 * seconds / 3}
        made.append(step(number, rows=1, processed=tokens, phases=phases, **(more or {})))
    return made


def eager(device="cpu", **model):
    return {"settings": settings(model={"attention": "eager", **model}, device={"type": device})}


def test_eager_attention_on_long_rows_is_found_by_what_grows_with_the_square(tmp_path):
    # The mean square of 1000, 1500 and 2000 is 2.41667e6, their mean 1500: 0.15 s linear, 0.24167 s square.
    found = attention_kernel(case_in(tmp_path, long_rows(1e-7), facts=eager()))
    assert found.evidence[0].value == pytest.approx(0.24167 / 0.39167, rel=0.01)
    # The longer ones count more: (1000**2 + 1500**2 + 2000**2) / 4500 = 1611.
    assert "62% of the loop on rows of 1,6" in found.title.replace("61.7%", "62%")
    judged(found, overrides={"model.attn_implementation": "sdpa"}, share=pytest.approx(0.7 * 0.617, rel=0.01))


def test_rows_of_one_length_tell_attention_by_its_flops(tmp_path):
    work = {"work": {"model_flops": 80, "hardware_flops": 100}}
    steps = long_rows(1e-7, lengths=(1000,), more=work)
    found = attention_kernel(case_in(tmp_path / "flops", steps, facts=eager("cuda")))
    assert found.evidence[0].value == pytest.approx(0.4)  # 2 * (1 - 0.8)
    assert found.remedies[0].gain.share == pytest.approx(0.8 * 0.4)
    padded = [{**one, "tokens": {**one["tokens"], "non_padding": 750}} for one in steps]
    padded = [{**one, "work": {"model_flops": 45, "hardware_flops": 100}} for one in padded]
    found = attention_kernel(case_in(tmp_path / "padded", padded, facts=eager("cuda")))
    assert found.evidence[0].value == pytest.approx(0.64)
    assert found.remedies[0].gain.share == pytest.approx(0.7 * 0.64)


def checkpointed(forward=1.0, backward=2.6, work=None):
    work = work or {"model_flops": 300, "hardware_flops": 800}
    phases = {"forward": forward, "backward": backward, "optimizer": 0.4}
    return [step(n, phases=phases, non_padding=200, work=work) for n in range(1, 11)]


def with_checkpointing(kept=100 << 20, on=True, trained=100, device_gib=16, **arguments):
    model = {"activation_checkpointing": on, "parameters": 100, "trainable_parameters": trained}
    device = {"type": "cpu", "memory_bytes": device_gib * GIB}
    stated = settings(model=model, device=device, arguments=arguments)
    return {"settings": stated, "memory": memory(400, activations=kept)}


def test_checkpointing_beside_idle_memory_is_found_with_the_second_forward(tmp_path):
    found = checkpointing_unneeded(case_in(tmp_path, checkpointed(), facts=with_checkpointing()))
    # By FLOPs 1 - 300 / 0.5 / 800 = 0.25 of 3.6 s = 0.9 s of each step of 4 s; by time the forward's 1 s.
    judged(found, share=0.225, overrides={"train.gradient_checkpointing": False}, but="about 2.83 GiB more memory")
    assert found.evidence[-1].value == 29 * (100 << 20)
    recorded = with_checkpointing(activation_checkpointing=True)  # as transformers fills it in
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        recipe = f"recipe: {{train: {{{name}: true}}}}"
        found = checkpointing_unneeded(case_in(tmp_path / name, checkpointed(), facts=recorded, recipe=recipe))
        assert found.remedies[0].overrides == {f"train.{name}": False}


CUDA = {"settings": settings(device={"type": "cuda"})}


def compiled(folder, at, seconds=1.0, **arguments):
    phases = {"forward": 1.0, "compilation": seconds}
    steps = [step(n, phases=phases if n in at else {"forward": 1.0}) for n in range(1, 21)]
    counted = {"recompiles": 4, "graph_breaks": 1, "break_reasons": {"print": 1}}
    facts = {"settings": settings(arguments=arguments), "compilation": counted}
    return recompilation(case_in(folder, steps, facts=facts))


def test_compiling_again_after_the_warm_up_is_found(tmp_path):
    found = compiled(tmp_path, {1, 8, 11, 15}, packing=False, max_length=128)
    # 20 s of steps, 4 s of compilation, 1 of them in the warm-up.
    judged(found, severity="warning", cost=3.0, overrides={"train.packing": True}, share=3 / 24)
    assert found.evidence[1].value == 3
    assert [one.value for one in found.evidence[2:]] == ["print"]


def samples(reasons, clock=1500.0):
    gpus = {"0": {"sm_clock_mhz": clock, "temperature_celsius": 90.0}}
    seconds = range(1, 21)
    return [{"at_seconds": float(n), "gpus": gpus, "throttled": {"0": reasons} if n % 2 else {}} for n in seconds]


def test_heat_is_a_warning_and_a_power_cap_is_not(tmp_path):
    steps = [step(n) for n in range(1, 21)]
    hot = throttling(case_in(tmp_path / "a", steps, facts=CUDA, system=samples(["thermal", "power_cap"])))
    assert hot.severity == "warning"
    assert "thermal" in hot.title
    assert hot.evidence[0].value == pytest.approx(0.5, abs=0.1)
    capped = throttling(case_in(tmp_path / "b", steps, facts=CUDA, system=samples(["power_cap"])))
    assert capped.severity == "info"


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
    judged(found, confidence="measured", cost=16 * 45 / 95, saves=8 * 45 / 95)
    assert [one.overrides for one in found.remedies] == [{"train.torch_compile": True}]


def test_the_records_tell_that_the_host_never_runs_ahead(tmp_path):
    device = {"forward": 0.3, "backward": 0.5, "optimizer": 0.2}
    found = launch_bound(on_cuda(tmp_path / "a", device_seconds=device, hfu_flops=10**11))
    judged(found, confidence="possible", cost=None)
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
    rows = {"train.per_device_train_batch_size": 8, "train.gradient_accumulation_steps": 1}
    overrides = {"train.gradient_checkpointing": True, **rows}
    judged(found, overrides=overrides, share=1 - 1.25 * 0.0325 / 0.12, frees=9 * GIB - 9 * GIB // 30)


def test_a_second_forward_must_be_worth_it(tmp_path):
    assert checkpointing_missing(full(tmp_path / "a", fixed=0.002)) is None
    assert checkpointing_missing(full(tmp_path / "b", available=8 * GIB)) is None  # there is room without
    assert checkpointing_missing(full(tmp_path / "c", activation_checkpointing=True)) is None
