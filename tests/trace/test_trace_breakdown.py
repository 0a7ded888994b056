"""Every figure of the hand-made trace; ``made_trace`` has the picture."""

from __future__ import annotations

import dataclasses
import json

import pytest
from made_trace import DEVICE, EVENTS, OPERATORS, STEPS, call, event, on_device

from hf_efficient.records.trace import KERNEL_FAMILIES

MICRO = 1e-6


def seconds(microseconds):
    return pytest.approx(microseconds * MICRO, abs=1e-12)


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


def test_streams_are_split_as_holistic_trace_analysis_does(device):
    first, second = device.streams
    assert (first.stream, first.events, second.stream, second.events) == (7, 8, 20, 1)
    # Busy 100 + 5 + 100 + 10 + 2 + 90. Gaps 5 (B is submitted in it), 48 (D was before), 100, 100, 50 (not known).
    assert first.busy.busy_seconds == seconds(307)
    idle = first.busy.idle
    assert (idle.host_bound_seconds, idle.launch_bound_seconds) == (seconds(105), 0)
    assert (idle.other_seconds, idle.unknown_seconds) == (seconds(198), seconds(50))
    assert second.busy.idle_seconds == 0


def test_communication_and_what_computation_hides(device):
    told = device.communication
    # C 208-308 beside B until 210 and D from 258: 2 + 50.
    assert (told.kernels, told.seconds, told.overlapped_seconds) == (1, seconds(100), seconds(52))
    assert (told.exposed_seconds, told.overlap_share) == (seconds(48), pytest.approx(0.52))
    assert told.exposed_share == pytest.approx(48 / 610)


def test_kernels_by_family(device):
    told = {one.family: (one.seconds, one.count) for one in device.families}
    assert told == {
        "matmul": (seconds(200), 2),
        "communication": (seconds(100), 1),
        "optimizer": (seconds(60), 1),
        "copy": (seconds(20), 2),
        "other": (seconds(20), 1),
        "elementwise": (seconds(5), 1),
        "memset": (seconds(2), 1),
    }
    assert [one.seconds for one in device.families] == sorted((one.seconds for one in device.families), reverse=True)
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
    assert "Several devices" in found.remarks[0]


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
    assert families == {
        "matmul": seconds(36),
        "elementwise": seconds(4),
        "optimizer": seconds(10),
        "other": seconds(50),
    }


def test_an_operator_within_itself_is_counted_once_in_all(broken_down):
    events = [
        event("cpu_op", "aten::to", 0, 10),
        event("cpu_op", "aten::to", 2, 8),
        event("cpu_op", "aten::to", 20, 25),
    ]
    (told,) = broken_down(events).host.operators
    assert (told.count, told.self_seconds, told.total_seconds) == (3, seconds(15), seconds(15))


def test_operators_beside_device_events_have_self_times_without_calls(broken_down):
    told = {one.name: one for one in broken_down().host.operators}
    assert told["aten::mm"].self_seconds == seconds(15)  # 25 less the call of 10
    assert told["aten::_local_scalar_dense"].self_seconds == seconds(43 - 30 - 5)


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


def test_a_trace_without_events(broken_down):
    found = broken_down([])
    assert (found.devices, found.host, found.steps, found.window_seconds) == ((), None, (), 0.0)
    assert found.remarks == ("The trace holds no events.",)


def test_a_device_that_ran_one_event_of_no_length(broken_down):
    (device,) = broken_down([on_device("kernel", "mystery", 5, 5, 1)]).devices
    assert (device.busy.window_seconds, device.busy.idle_share, device.gaps) == (0.0, 0.0, ())


def test_the_profilers_own_time_is_told(broken_down):
    found = broken_down([*EVENTS, event("overhead", "Lazy Function Loading", 0, 500)])
    assert "0.001 s are the profiler's own overhead or the loading of kernels: Lazy Function Loading." in found.remarks


def test_a_breakdown_is_strict_json(broken_down):
    told = json.loads(json.dumps(dataclasses.asdict(broken_down()), allow_nan=False))
    assert told["schema_version"] == 1
    assert told["devices"][0]["families"][0]["family"] in KERNEL_FAMILIES
