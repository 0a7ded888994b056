"""Copies, by hand."""

from __future__ import annotations

import pytest
from made_trace import call, on_device

from hf_efficient.trace.device import copy_of_name


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "pageable")),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", "pinned")),
        ("Memcpy DtoD (Device -> Device)", ("DtoD", None)),
        ("Memcpy PtoP (Device -> Device)", ("PtoP", None)),
        ("Memcpy HtoD (Host -> Device)", ("HtoD", None)),  # ROCm does not tell
        ("CopyDeviceToHost", ("DtoH", None)),
        ("Memcpy", ("unknown", None)),
    ],
)
def test_names_tell_direction_and_memory(name, told):
    assert copy_of_name(name) == told


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
    assert (to_device.count, to_device.bytes, to_device.untold_bytes_count) == (2, 2560, 1)
    assert to_device.bytes_per_second == pytest.approx(2560 / 10e-6)  # over the one whose bytes are told
    assert (within.bytes, within.bytes_per_second, within.call_seconds) == (None, None, None)
