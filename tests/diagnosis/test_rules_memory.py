"""Memory that is full, torn, spent on logits or the optimizer, or that grows."""

import dataclasses

import pytest

from hf_efficient.diagnosis.rules import memory as rules
from hf_efficient.diagnosis.rules.machine import unused_memory
from hf_efficient.estimate.allocator import CONTEXT_BYTES
from hf_efficient.facts.prices import offers
from hf_efficient.facts.tables import accelerator
from hf_efficient.records.findings import Abstention
from tests.diagnosis.made import case_in, judged, settings, step, step_memory
from tests.diagnosis.made import memory as counted_memory

GIB, MIB = 1 << 30, 1 << 20


def gpu(folder, allocated, reserved, *, total=80 * GIB + CONTEXT_BYTES, retries=None, seconds=None, **more):
    """Twenty steps of 1 s; ``retries`` and ``seconds`` step by step; categories, arguments, model, price."""
    steps = []
    for number in range(1, 21):
        held = step_memory(allocated, reserved, retries[number - 1] if retries else 0)
        phases = {"forward": seconds[number - 1] if seconds else 1.0}
        steps.append(step(number, phases=phases, memory=held))
    stated = settings(
        arguments=more.get("arguments", {}),
        model=more.get("model", {}),
        device={"type": "cuda", "name": more.get("name", "NVIDIA H100 80GB HBM3"), "memory_bytes": total},
    )
    counted = counted_memory(None, "cuda:0", **more.get("categories", {}))
    facts = {"settings": stated, "memory": counted, **more.get("facts", {})}
    peaks = {"device_peak_allocated_bytes": allocated, "device_peak_reserved_bytes": reserved}
    return case_in(folder, steps, facts=facts, price_usd_per_hour=more.get("price"), memory=peaks)


def test_a_peak_of_96_percent_is_near_the_end(tmp_path):
    arguments = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    model = {"activation_checkpointing": False}
    found = rules.near_out_of_memory(gpu(tmp_path, 70 * GIB, int(76.8 * GIB), arguments=arguments, model=model))
    assert found.evidence[2].value == pytest.approx(0.96)
    assert "3.20 GiB" in found.title
    rows = {"train.per_device_train_batch_size": 2, "train.gradient_accumulation_steps": 4}
    assert [one.overrides for one in found.remedies[:2]] == [rows, {"train.gradient_checkpointing": True}]


def test_retries_after_the_warm_up_cost_what_their_steps_took_longer(tmp_path):
    retries = [0] * 9 + [1] * 5 + [3] * 6
    seconds = [1.0] * 9 + [2.5] + [1.0] * 4 + [1.5] + [1.0] * 5
    arguments = {"train_sampling_strategy": "random", "packing": False}
    case = gpu(tmp_path, 60 * GIB, 70 * GIB, retries=retries, seconds=seconds, arguments=arguments)
    found = rules.fragmentation(case)
    judged(found, severity="warning", cost=2.0, saves=2.0)
    assert "3 times" in found.title
    assert found.remedies[1].overrides == {"train.train_sampling_strategy": "group_by_length"}


def test_retries_in_a_full_device_are_the_micro_batchs(tmp_path):
    seconds = [1.0] * 9 + [3.0] + [1.0] * 10
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    more = {"retries": [0] * 9 + [1] * 11, "seconds": seconds, "arguments": arguments}
    found = rules.large_micro_batch(gpu(tmp_path / "a", 70 * GIB, 74 * GIB, **more))
    assert found.cost.seconds == pytest.approx(2.0)
    overrides = {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 2}
    assert found.remedies[0].overrides == overrides
    assert "fragmentation" in found.explains
    assert rules.large_micro_batch(gpu(tmp_path / "b", 60 * GIB, 70 * GIB, **more)) is None  # there is room left


def test_logits_of_half_of_the_peak_in_a_full_device(tmp_path):
    arguments = {"loss_type": "nll", "packing": False, "per_device_train_batch_size": 8}
    case = gpu(tmp_path, 60 * GIB, 64 * GIB, categories={"logits": 30 * GIB}, arguments=arguments)
    found = rules.logits_spike(case)
    assert (found.severity, found.cost.bytes) == ("warning", 30 * GIB)
    rows = {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 2}
    assert [one.overrides for one in found.remedies] == [{"train.loss_type": "chunked_nll"}, rows]
    assert [one.gain.bytes for one in found.remedies] == [30 * GIB, 15 * GIB]


def test_optimizer_state_of_half_of_the_peak(tmp_path):
    arguments, model = {"optim": "adamw_torch_fused"}, {"parameters": 10, "trainable_parameters": 10}
    case = gpu(tmp_path, 64 * GIB, 68 * GIB, categories={"optimizer_state": 32 * GIB}, arguments=arguments, model=model)
    found = rules.optimizer_state(case)
    judged(found, overrides={"train.optim": "adamw_8bit"}, frees=24 * GIB)
    assert found.remedies[1].overrides == {"adapter.method": "lora"}


def test_a_device_of_which_little_is_used_has_a_cheaper_one(tmp_path):
    work = {"dtype": "bf16", "accelerators": 1, "peak_flops_per_second": 989e12}
    case = gpu(tmp_path, 10 * GIB, 12 * GIB, price=20.0, facts={"work": work})
    found = unused_memory(case)
    gain = found.remedies[0].gain
    name = found.title.rpartition(": ")[2].removesuffix(" would do")
    cheaper, here = accelerator(name), accelerator("H100 SXM")
    hour = min(one.usd_per_gpu_hour for one in offers(name, "on_demand"))
    flops = here.peak("bf16") / cheaper.peak("bf16")
    slower = max(flops, here.bandwidth_bytes_per_second / cheaper.bandwidth_bytes_per_second)
    assert found.severity == "info"
    assert cheaper.usable_memory_bytes > 1.1 * 12 * GIB
    assert gain.usd == pytest.approx(case.account.money.cost_usd * (1 - slower * hour / 20.0))


def on_device(peaks):
    return [step(number, memory=step_memory(peak, peak)) for number, peak in enumerate(peaks, start=1)]


def in_process(readings, available=100 * GIB):
    """A reading in the middle of each step of a second; the loop begins 2 s after the process."""
    return [
        {"at_seconds": 2.5 + place, "rss_bytes": value, "host_available_bytes": available}
        for place, value in enumerate(readings)
    ]


def facts(memory=None):
    return {"settings": settings(device={"type": "cuda", "memory_bytes": memory})}


def test_a_device_that_keeps_something_of_every_step(tmp_path):
    # 4 MiB per step over the 36 steps from the fifth to the fortieth.
    steps = on_device([GIB + 4 * MIB * number for number in range(40)])
    found = rules.memory_growth(case_in(tmp_path, steps, facts=facts(memory=2 * GIB)))
    assert found.title == "the memory of the device grows by 4.0 MiB with every step"
    judged(found, severity="warning", cost_bytes=4 * MIB * 35, cost=None, frees=4 * MIB * 35)
    # 1024 - 156 MiB are left.
    assert found.evidence[-1].value == 217


def test_a_process_that_keeps_something_of_every_step(tmp_path):
    steps = [step(number) for number in range(1, 41)]
    samples = in_process([GIB + 10 * MIB * number for number in range(40)])
    found = rules.memory_growth(case_in(tmp_path, steps, system=samples))
    assert found.title == "the memory of the process grows by 10.0 MiB with every step"
    assert found.evidence[0].value == pytest.approx(10 * MIB)


GROWTHS = {
    "little": [GIB + MIB * number for number in range(40)],
    "ends": [GIB + 10 * MIB * min(number, 15) for number in range(40)],
    "uneven": [GIB + 100 * MIB * (number % 7) for number in range(40)],
}


@pytest.mark.parametrize("peaks", GROWTHS.values(), ids=GROWTHS)
def test_growth_that_is_little_or_ends_is_none(tmp_path, peaks):
    assert rules.memory_growth(case_in(tmp_path, on_device(peaks), facts=facts())) is None


def test_without_readings_it_abstains(tmp_path):
    assert isinstance(rules.memory_growth(case_in(tmp_path / "a")), Abstention)
    assert isinstance(rules.memory_growth(case_in(tmp_path / "b", [step(n) for n in range(1, 41)])), Abstention)
    few = case_in(tmp_path / "c", [step(n) for n in range(1, 41)], system=in_process([GIB, 2 * GIB, 3 * GIB]))
    assert "fewer than six" in rules.memory_growth(few).why


@pytest.mark.parametrize(("rate", "said"), [(50, ("info", "possible")), (300, ("warning", "measured"))])
def test_a_process_that_grew_by_half_in_a_few_readings_is_no_warning(tmp_path, rate, said):
    """It grows by half, and to four times; by so many MiB in a step."""
    grown = in_process([GIB + rate * MIB * n for n in range(12)])
    found = rules.memory_growth(case_in(tmp_path, [step(number) for number in range(1, 13)], system=grown))
    assert (found.severity, found.confidence) == said


def failed(case, error):
    return dataclasses.replace(case, account=dataclasses.replace(case.account, ended="error", error=error))


def test_the_exception_is_the_evidence_and_the_remedies_are_changes(tmp_path):
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    stated = settings(
        arguments=arguments, model={"activation_checkpointing": False}, device={"type": "cuda", "memory_bytes": 100}
    )
    case = case_in(tmp_path, [step(1)], facts={"settings": stated})
    found = rules.out_of_memory(failed(case, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert found.severity == "critical"
    assert [one.value for one in found.evidence][1:] == [1, 100]
    rows = {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 4}
    assert [one.overrides for one in found.remedies] == [{}, rows, {"train.gradient_checkpointing": True}]


FEWER = {(8, 1): (4, 2), (5, 1): (1, 5), (5, 2): (2, 5), (6, 2): (3, 4), (7, 3): (3, 7), (1, 4): None}


@pytest.mark.parametrize(("batch", "fewer"), FEWER.items())
def test_the_rows_of_a_step_stay(tmp_path, batch, fewer):
    """Rows of a micro-batch, and micro-batches of a step."""
    arguments = dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), batch, strict=True))
    found = rules.fewer_rows(case_in(tmp_path, facts={"settings": settings(arguments=arguments)}), "smaller kernels")
    assert [tuple(one.overrides.values()) for one in found] == ([] if fewer is None else [fewer])
