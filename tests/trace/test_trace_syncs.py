"""Where the host waited, and where in the program that was."""

from __future__ import annotations

import pytest
from made_trace import EVENTS, call, event, on_device

from hf_efficient.trace.host import function_site

STACK = [
    event("python_function", "train.py(3): main", 0, 2000),
    event("python_function", "train.py(12): compute_loss", 400, 500),
    event("python_function", "/venv/lib/python3.11/site-packages/torch/_tensor.py(5): item", 425, 485),
    event("python_function", "<built-in method item of Tensor object>", 426, 484),
]


def micro(value):
    return pytest.approx(value * 1e-6, abs=1e-12)


def test_waits_of_the_picture(broken_down):
    copy, closing, stream = broken_down().syncs
    assert (copy.call, copy.operator, copy.site) == ("cudaMemcpyAsync", "aten::item", None)
    assert (copy.count, copy.seconds, copy.longest_seconds) == (1, micro(30), micro(30))
    assert copy.idle_after_seconds == micro(100)  # the device runs dry at 468, within 440-470
    assert (stream.call, stream.operator, stream.seconds) == ("cudaStreamSynchronize", "aten::item", micro(5))
    assert (stream.idle_after_seconds, stream.outside_steps) == (0.0, 0)
    assert (closing.call, closing.operator, closing.outside_steps) == ("cudaDeviceSynchronize", None, 1)


def test_steps_count_what_began_in_them(broken_down):
    fifth, sixth = broken_down().steps
    assert (fifth.number, fifth.start_seconds, fifth.seconds) == (5, 0.0, micro(1000))
    assert (fifth.busy_seconds, fifth.syncs, fifth.sync_seconds) == (micro(355), 2, micro(35))
    assert (sixth.number, sixth.busy_seconds, sixth.syncs) == (6, 0.0, 0)


def test_recorded_functions_tell_the_place(broken_down):
    found = broken_down([*EVENTS, *STACK])
    assert found.file.has_stacks
    assert found.syncs[0].site == "train.py:12 (compute_loss)"
    assert found.syncs[1].site is None  # cudaDeviceSynchronize: nothing is around it


def test_call_stacks_of_operators_tell_it_too(broken_down):
    stack = "<built-in>;torch/_tensor.py(5): item;train.py(12): compute_loss;train.py(3): main"
    events = [{**one, "args": {"Call stack": stack}} if one["name"] == "aten::item" else one for one in EVENTS]
    assert broken_down(events).syncs[0].site == "train.py:12 (compute_loss)"


def test_several_waits_at_one_place_are_one(broken_down):
    events = [
        event("cpu_op", "aten::item", 0, 10),
        call("cudaStreamSynchronize", 1, 9, 1),
        event("cpu_op", "aten::item", 20, 30),
        call("cudaStreamSynchronize", 22, 25, 2),
        call("cudaEventQuery", 40, 41, 3),
    ]
    (site,) = broken_down(events).syncs
    assert (site.count, site.seconds, site.longest_seconds) == (2, micro(11), micro(8))
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
