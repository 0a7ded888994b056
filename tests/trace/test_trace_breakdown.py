"""Every figure of the hand-made trace; ``made_trace`` has the picture. And a trace of the installed torch."""

import dataclasses

import pytest
from made_trace import DEVICE, EVENTS, OPERATORS, STEPS, call, event, on_device

from hf_efficient.trace.breakdown import NOTHING_RECORDED, copy_of_name, trace_breakdown
from hf_efficient.trace.host import function_site

STACK = [
    event("python_function", "train.py(3): main", 0, 2000),
    event("python_function", "train.py(12): compute_loss", 400, 500),
    event("python_function", "/venv/lib/python3.11/site-packages/torch/_tensor.py(5): item", 425, 485),
    event("python_function", "<built-in method item of Tensor object>", 426, 484),
]


def seconds(microseconds):
    return pytest.approx(microseconds * 1e-6, abs=1e-12)


@pytest.fixture
def device(broken_down):
    (device,) = broken_down().devices
    return device


def test_a_device_is_busy_or_idle(device):
    assert (device.device, device.name) == (0, "NVIDIA Test GPU")
    assert device.first_event_seconds == seconds(100)
    busy = device.busy
    assert (busy.window_seconds, busy.busy_seconds, busy.idle_seconds) == (seconds(610), seconds(355), seconds(255))
    assert busy.idle_share == pytest.approx(255 / 610)
    assert busy.compute_seconds == seconds(285)  # A 100, B 5, D 100, G and H 80


def test_idle_time_has_causes(device):
    idle = device.busy.idle
    assert (idle.launch_bound_seconds, idle.launch_bound_gaps) == (seconds(5), 1)
    assert (idle.host_bound_seconds, idle.host_bound_gaps) == (seconds(100), 1)
    assert (idle.other_seconds, idle.other_gaps) == (seconds(150), 2)
    assert idle.unknown_seconds == seconds(50)


def test_communication_and_what_computation_hides(device):
    told = device.communication
    # C 208-308 beside B until 210 and D from 258: 2 + 50.
    assert (told.kernels, told.seconds, told.overlapped_seconds) == (1, seconds(100), seconds(52))
    assert (told.exposed_seconds, told.overlap_share) == (seconds(48), pytest.approx(0.52))
    assert told.exposed_share == pytest.approx(48 / 610)


def test_kernels_by_family(device):
    counts = {"matmul": 2, "communication": 1, "optimizer": 1, "copy": 2, "other": 1, "elementwise": 1, "memset": 1}
    assert {one.family: one.count for one in device.families} == counts
    assert [one.seconds for one in device.families] == [seconds(one) for one in (200, 100, 60, 20, 20, 5, 2)]
    assert device.families[0].share == pytest.approx(200 / 407)


def test_the_longest_kernels(device):
    first = device.kernels[0]
    assert (first.name, first.family, first.count) == ("ampere_bf16_s16816gemm_bf16_128x128", "matmul", 2)
    assert (first.seconds, first.mean_seconds) == (seconds(200), seconds(100))
    assert first.operator == "aten::mm"  # of A; no operator is around D's call, of as many seconds
    add = next(one for one in device.kernels if one.family == "elementwise")
    assert (add.name, add.operator) == ("at::native::vectorized_elementwise_kernel [CUDAFunctor_add]", "aten::add")
    assert next(one for one in device.kernels if one.name == "mystery").operator is None


def test_launches(device):
    told = device.launches
    assert (told.kernels, told.graph_kernels) == (6, 0)
    assert told.kernels_per_second == pytest.approx(6 / 610e-6)
    # 5, 20, 60, 100, 100, 100: the middle lies between 60 and 100.
    assert (told.length.p50_seconds, told.length.largest_seconds) == (seconds(80), seconds(100))
    assert (told.short_share, told.short_time_share) == (pytest.approx(1 / 6), pytest.approx(5 / 385))
    assert told.call_seconds == seconds(10 + 2 + 5 + 5 + 10)
    assert told.call.p50_seconds == seconds(5)
    # A 20, B 3, C 58, D 98, H 50
    assert (told.delay.p50_seconds, told.delay.largest_seconds) == (seconds(50), seconds(98))


def test_kernels_of_a_cuda_graph_have_no_delay(broken_down):
    events = [
        call("cudaGraphLaunch", 0, 10, 1),
        on_device("kernel", "one", 20, 30, 1),
        on_device("kernel", "two", 40, 50, 1),
        call("cudaLaunchKernel", 50, 54, 2),
        on_device("kernel", "three", 60, 70, 2),
    ]
    told = broken_down(events).devices[0].launches
    assert (told.kernels, told.graph_kernels, told.call_seconds) == (3, 2, seconds(14))
    assert told.delay.largest_seconds == seconds(10)


def test_two_devices_have_a_breakdown_each(broken_down):
    found = broken_down([*EVENTS, on_device("kernel", "mystery", 0, 50, 98, device=1)])
    assert [one.device for one in found.devices] == [0, 1]
    assert found.devices[0].busy.busy_seconds == seconds(355)
    assert found.devices[1].busy.busy_seconds == seconds(50)
    assert "several devices" in found.remarks[0]


def test_events_in_any_order(broken_down):
    found = broken_down(EVENTS)
    mixed = broken_down([*EVENTS[1::2], *reversed(EVENTS[::2])])
    assert dataclasses.replace(mixed, file=found.file) == found


def test_a_trace_of_the_host_alone(broken_down):
    found = broken_down([*STEPS, *OPERATORS, event("cpu_op", "aten::mm", 581, 591)])
    assert found.devices == ()
    assert found.remarks[0].startswith("There are no device events in this trace")
    assert [step.busy_seconds for step in found.steps] == [None, None]
    told = {one.name: one for one in found.host.operators}
    # aten::linear 60-96 around aten::mm 70-95; the other mm is the optimizer's.
    assert (told["aten::linear"].self_seconds, told["aten::linear"].total_seconds) == (seconds(11), seconds(36))
    assert (told["aten::mm"].self_seconds, told["aten::mm"].count) == (seconds(35), 2)
    assert told["aten::item"].self_seconds == seconds(7)
    assert found.host.operator_seconds == seconds(36 + 4 + 50 + 10)
    families = {one.family: one.seconds for one in found.host.families}
    own = {"matmul": seconds(36), "elementwise": seconds(4), "optimizer": seconds(10), "other": seconds(50)}
    assert families == own


def test_an_operator_within_itself_is_counted_once_in_all(broken_down):
    events = [event("cpu_op", "aten::to", start, end) for start, end in ((0, 10), (2, 8), (20, 25))]
    (told,) = broken_down(events).host.operators
    assert (told.count, told.self_seconds, told.total_seconds) == (3, seconds(15), seconds(15))


def test_operators_beside_device_events_have_self_times_without_calls(broken_down):
    told = {one.name: one for one in broken_down().host.operators}
    assert told["aten::mm"].self_seconds == seconds(15)  # 25 less the call of 10


def test_a_trace_of_the_device_alone(broken_down):
    found = broken_down(DEVICE)
    assert found.host is None
    assert found.syncs == ()
    idle = found.devices[0].busy.idle
    assert (idle.launch_bound_seconds, idle.other_seconds) == (seconds(5), seconds(250))
    assert idle.unknown_seconds == seconds(250)
    assert "does not hold the call that ended it" in found.remarks[0]
    assert found.devices[0].launches.call is None
    assert found.devices[0].launches.delay is None


def test_the_profilers_own_time_is_told(broken_down):
    found = broken_down([*EVENTS, event("overhead", "Lazy Function Loading", 0, 500)])
    assert "0.001 s are the profiler's own overhead or the loading of kernels: Lazy Function Loading." in found.remarks


def test_gaps_of_the_picture(broken_down):
    first, second, third, fourth = broken_down().devices[0].gaps
    assert (first.start_seconds, first.seconds) == (pytest.approx(358e-6), pytest.approx(100e-6))
    assert (first.cause, first.step) == ("host_bound", 5)
    assert (first.before, first.after) == ("ampere_bf16_s16816gemm_bf16_128x128", "Memcpy DtoH (Device -> Pageable)")
    # In 358-458: nothing until aten::item at 430, _local_scalar_dense at 435, the copy's call at 440.
    assert first.host == (
        (NOTHING_RECORDED, pytest.approx(0.72)),
        ("cudaMemcpyAsync", pytest.approx(0.18)),
        ("aten::item", pytest.approx(0.05)),
    )
    assert (second.cause, second.after) == ("other", "Memset (Device)")
    assert (third.cause, third.after, third.host) == ("other", "mystery", ())  # nobody knows who submitted it
    assert (fourth.cause, fourth.seconds) == ("launch_bound", pytest.approx(5e-6))


def test_recorded_functions_say_what_python_did(broken_down):
    functions = [
        event("python_function", "loader.py(7): fetch", 350, 428),
        event("python_function", "loader.py(9): fetch", 360, 370, tid=2),
    ]
    first = broken_down([*EVENTS, *functions]).devices[0].gaps[0]
    assert first.host[0] == ("loader.py(7): fetch", pytest.approx(0.70))


def test_waits_of_the_picture(broken_down):
    copy, closing, stream = broken_down().syncs
    assert (copy.call, copy.operator, copy.site) == ("cudaMemcpyAsync", "aten::item", None)
    assert (copy.count, copy.seconds, copy.longest_seconds) == (1, seconds(30), seconds(30))
    assert copy.idle_after_seconds == seconds(100)  # the device runs dry at 468, within 440-470
    assert (stream.call, stream.operator, stream.seconds) == ("cudaStreamSynchronize", "aten::item", seconds(5))
    assert (stream.idle_after_seconds, stream.outside_steps) == (0.0, 0)
    assert (closing.call, closing.operator, closing.outside_steps) == ("cudaDeviceSynchronize", None, 1)


def test_steps_count_what_began_in_them(broken_down):
    fifth, sixth = broken_down().steps
    assert (fifth.number, fifth.start_seconds, fifth.seconds) == (5, 0.0, seconds(1000))
    assert (fifth.busy_seconds, fifth.syncs, fifth.sync_seconds) == (seconds(355), 2, seconds(35))
    assert (sixth.number, sixth.busy_seconds, sixth.syncs) == (6, 0.0, 0)


def test_recorded_functions_tell_the_place(broken_down):
    found = broken_down([*EVENTS, *STACK])
    assert found.syncs[0].site == "train.py:12 (compute_loss)"
    assert found.syncs[1].site is None  # cudaDeviceSynchronize: nothing is around it


def test_several_waits_at_one_place_are_one(broken_down):
    events = [
        event("cpu_op", "aten::item", 0, 10),
        call("cudaStreamSynchronize", 1, 9, 1),
        event("cpu_op", "aten::item", 20, 30),
        call("cudaStreamSynchronize", 22, 25, 2),
        call("cudaEventQuery", 40, 41, 3),
    ]
    (site,) = broken_down(events).syncs
    assert (site.count, site.seconds, site.longest_seconds) == (2, seconds(11), seconds(8))
    assert site.outside_steps == 0


@pytest.mark.parametrize(("memory", "waits"), [("Pageable", 1), ("Pinned", 0)])
def test_only_copies_to_pageable_memory_wait(broken_down, memory, waits):
    events = [
        call("cudaMemcpyAsync", 0, 5, 1),
        on_device("gpu_memcpy", f"Memcpy DtoH (Device -> {memory})", 1, 4, 1),
        on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 8, 9, 2),
        call("cudaMemcpyAsync", 6, 7, 2),
    ]
    assert len(broken_down(events).syncs) == waits


def test_the_place_a_user_would_look_at():
    assert function_site(["/a/site-packages/x.py(1): f", "mine.py(2): g", "mine.py(9): h"]) == "mine.py:2 (g)"
    assert function_site(["nn.Module: Linear_0", "/a/site-packages/x.py(1): f"]) == "/a/site-packages/x.py:1 (f)"
    assert function_site(["nn.Module: Linear_0", "<built-in method item>"]) is None
    assert function_site([]) is None


COPIES = {
    "Memcpy HtoD (Pageable -> Device)": ("HtoD", "pageable"),
    "Memcpy DtoH (Device -> Pinned)": ("DtoH", "pinned"),
    "Memcpy PtoP (Device -> Device)": ("PtoP", None),
    "Memcpy HtoD (Host -> Device)": ("HtoD", None),  # ROCm leaves it open
    "CopyDeviceToHost": ("DtoH", None),
    "Memcpy": ("unknown", None),
}


def test_names_show_direction_and_memory():
    assert {name: copy_of_name(name) for name in COPIES} == COPIES


def test_copies_of_the_picture(broken_down):
    to_host, to_device = sorted(broken_down().devices[0].copies, key=lambda one: one.direction)
    assert (to_host.direction, to_host.host_memory, to_host.count) == ("DtoH", "pageable", 1)
    assert (to_host.bytes, to_host.small_count) == (4096, 1)
    assert to_host.call_seconds == pytest.approx(30e-6)
    assert (to_device.direction, to_device.host_memory) == ("HtoD", "pinned")
    assert to_device.bytes_per_second == pytest.approx(1e11)  # 1 MB in 10 microseconds
    assert to_device.small_count == 0


def test_bytes_that_only_the_call_tells_or_nobody(broken_down):
    events = [
        call("hipMemcpyWithStream", 0, 5, 1, size="2560", stream="0x0"),
        on_device("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 10, 20, 1),
        on_device("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 20, 50, 2),
        on_device("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 50, 60, 3),
    ]
    to_device, within = broken_down(events).devices[0].copies
    assert (to_device.count, to_device.bytes) == (2, 2560)
    assert to_device.bytes_per_second == pytest.approx(2560 / 10e-6)  # over the one whose bytes are told
    assert (within.bytes, within.bytes_per_second, within.call_seconds) == (None, None, None)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    path = tmp_path_factory.mktemp("traces") / "trace.json.gz"
    weight = torch.ones(8, 8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    options = {"record_shapes": True, "with_stack": True, "schedule": schedule(wait=1, warmup=1, active=2)}
    options["on_trace_ready"] = lambda one: one.export_chrome_trace(str(path))
    with profile(activities=[ProfilerActivity.CPU], **options) as profiler:
        for _ in range(4):
            torch.mm(weight, weight).sum().backward()
            optimizer.step()
            profiler.step()
    return trace_breakdown(path)


def test_a_trace_that_the_installed_torch_writes_on_the_cpu(installed):
    file = installed.file
    assert (file.truncated, file.unreadable_events) == (False, 0)
    assert file.has_shapes
    assert installed.devices == ()
    assert installed.remarks[0].startswith("There are no device events")
    assert [step.number for step in installed.steps] == [2, 3]
    assert all(0 < step.seconds < 60 for step in installed.steps)
    told = {one.name: one for one in installed.host.operators}
    assert told["aten::mm"].count == 2 * 3  # forward, and two products in the backward
    assert told["aten::mm"].family == "matmul"
    assert {one.family for one in installed.host.families} >= {"matmul", "optimizer", "reduction"}
    assert installed.host.operator_seconds <= installed.window_seconds * installed.host.threads
