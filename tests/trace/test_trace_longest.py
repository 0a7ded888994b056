"""The longest gaps, and what the host did in them."""

from __future__ import annotations

import pytest
from made_trace import EVENTS, event

from hf_efficient.trace.device import NOTHING_RECORDED


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
