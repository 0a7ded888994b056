"""Findings of a trace alone, worked out by hand; times of the events are microseconds."""

import pytest

from hf_efficient.diagnosis.engine import findings_of_trace
from tests.diagnosis.made import ALL_REDUCE, MATMUL, broken_down, judged, kernels
from tests.trace.made_trace import ADD, call, event, on_device


def found(tmp_path, events, name="NVIDIA Test GPU"):
    return {one.rule: one for one in findings_of_trace(broken_down(tmp_path, events, name))}


def test_a_busy_device_gets_no_finding_and_a_trace_without_device_neither(tmp_path):
    assert found(tmp_path, kernels((MATMUL, 100, 500, 10), (MATMUL, 500, 1000, 20))) == {}
    assert findings_of_trace(broken_down(tmp_path, [event("cpu_op", "aten::mm", 0, 10)])) == []


def test_a_device_that_waits_for_the_host(tmp_path):
    events = kernels((MATMUL, 100, 400, 10), (MATMUL, 600, 1100, 590))
    events.append(event("cpu_op", "mypackage.callback", 410, 580))
    one = found(tmp_path, events)["trace_host_bound"]
    # From 100 to 1100: idle from 400 to 600, and the next kernel is submitted at 590.
    assert one.title == "device 0 waits for the host in 20% of the time, the longest for 200 µs"
    judged(one, cost=200e-6, share=0.2, overrides={})


def test_a_device_that_waits_while_data_are_fetched_asks_for_workers(tmp_path):
    events = kernels((MATMUL, 100, 400, 10), (MATMUL, 600, 1100, 590))
    events.append(event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 405, 585))
    assert found(tmp_path, events)["trace_host_bound"].remedies[0].overrides == {"train.dataloader_num_workers": 4}


def test_kernels_shorter_than_their_launch(tmp_path):
    # Ten kernels of 5 us, 10 us apart: 50 us of 95 run, 45 are gaps of 5 us.
    events = kernels(*((MATMUL, 10.0 * n, 10.0 * n + 5, 10.0 * n - 2) for n in range(1, 11)))
    one = found(tmp_path, events)["trace_launch_bound"]
    assert one.title.startswith("device 0 waits for launches in 47.4% of the time: half of its kernels are shorter")
    assert one.remedies[0].gain.share == pytest.approx(45 / 95 / 2)
    assert one.remedies[1].overrides == {"train.torch_compile": True}


def test_communication_that_nothing_covers(tmp_path):
    # The all-reduce runs from 300 to 700; the products until 400 and from 700 on: 300 of 1000 are exposed.
    events = kernels((MATMUL, 0, 400, 0), (MATMUL, 700, 1000, 1))
    events += kernels((ALL_REDUCE, 300, 700, 2), first=10, stream=20)
    one = found(tmp_path, events)["trace_exposed_communication"]
    assert one.title == "device 0 communicates and computes nothing in 30% of the time"
    judged(one, share=0.15)


def test_copies_from_pageable_memory(tmp_path):
    events = kernels((MATMUL, 0, 900, 0))
    events.append(call("cudaMemcpyAsync", 890, 990, 5))
    events.append(on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 900, 1000, 5, bytes=100_000))
    one = found(tmp_path, events)["trace_pageable_copies"]
    assert "1 copies from pageable memory to device 0 take 100 µs, 10% of the time" in one.title
    judged(one, overrides={"train.dataloader_pin_memory": True}, share=0.1)
    assert [item.value for item in one.evidence if item.what == "of at most 64 KiB"] == [0]
    pinned = [item for item in events if "Pageable" not in item["name"]]
    pinned.append(on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 900, 1000, 5, bytes=100_000))
    assert found(tmp_path, pinned) == {}


def test_waits_that_leave_the_device_without_work_are_named_by_their_operator(tmp_path):
    events = kernels((MATMUL, 0, 400, 0), (MATMUL, 500, 1000, 470))
    events.append(event("cpu_op", "aten::item", 10, 460))
    events.append(call("cudaStreamSynchronize", 20, 450, 50))
    told = found(tmp_path, events)
    one = told["trace_synchronisations"]
    assert "runs out of work in 10% of the time" in one.title
    assert one.title.endswith("most of all in aten::item (cudaStreamSynchronize)")
    assert one.remedies[0].gain.share == pytest.approx(0.1)
    assert told["trace_host_bound"].severity == "info"  # its consequence


def test_kernels_that_move_memory(tmp_path):
    events = kernels((MATMUL, 0, 400, 0), (ADD, 400, 1000, 10))
    one = found(tmp_path, events)["trace_memory_bound"]
    assert one.title == "60% of device 0's kernel time moves memory, and multiplies nothing"
    judged(one, share=0.3)


def test_float32_products_are_told_by_their_kernels_and_old_devices_take_float16(tmp_path):
    events = kernels(("ampere_sgemm_128x64_tn", 0, 400, 0), (MATMUL, 400, 1000, 10))
    one = found(tmp_path, events, "NVIDIA A100-SXM4-40GB")["trace_float32_products"]
    assert one.title == "40% of device 0's time are matrix products in float32"
    assert [remedy.overrides for remedy in one.remedies] == [{"train.bf16": True}, {"train.tf32": True}]
    assert one.remedies[0].gain.share == pytest.approx(0.2)
    of_16_bits = kernels(("ampere_fp16_sgemm_fp16_128x64_tn", 0, 400, 0))
    assert "trace_float32_products" not in found(tmp_path, of_16_bits)
    old = found(tmp_path, kernels(("volta_sgemm_128x64_tn", 0, 400, 0)))["trace_float32_products"]
    assert [remedy.overrides for remedy in old.remedies] == [{"train.fp16": True}]


def test_the_costliest_comes_first(tmp_path):
    events = kernels((MATMUL, 0, 100, 0), (ADD, 400, 900, 390), (MATMUL, 900, 1000, 395))
    rules = [one.rule for one in findings_of_trace(broken_down(tmp_path, events))]
    assert rules == ["trace_memory_bound", "trace_host_bound"]
