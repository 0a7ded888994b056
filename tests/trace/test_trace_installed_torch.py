"""A trace that the installed torch writes, on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from hf_efficient.trace.breakdown import trace_breakdown


@pytest.fixture(scope="module")
def breakdown(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.json.gz"
    weight = torch.ones(8, 8, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    options = {"record_shapes": True, "with_stack": True, "schedule": schedule(wait=1, warmup=1, active=2)}
    with profile(
        activities=[ProfilerActivity.CPU], on_trace_ready=lambda one: one.export_chrome_trace(str(path)), **options
    ) as profiler:
        for _ in range(4):
            torch.mm(weight, weight).sum().backward()
            optimizer.step()
            profiler.step()
    return trace_breakdown(path)


def test_it_is_read_whole(breakdown):
    file = breakdown.file
    assert (file.truncated, file.unreadable_events) == (False, 0)
    assert (file.has_stacks, file.has_shapes) == (True, True)


def test_it_has_no_device_events_and_says_so(breakdown):
    assert breakdown.devices == ()
    assert breakdown.remarks[0].startswith("There are no device events")


def test_steps_and_operators_are_there(breakdown):
    assert [step.number for step in breakdown.steps] == [2, 3]
    assert all(0 < step.seconds < 60 for step in breakdown.steps)
    told = {one.name: one for one in breakdown.host.operators}
    assert told["aten::mm"].count == 2 * 3  # forward, and two products in the backward
    assert told["aten::mm"].family == "matmul"
    assert {one.family for one in breakdown.host.families} >= {"matmul", "optimizer", "reduction"}
    assert breakdown.host.operator_seconds <= breakdown.window_seconds * breakdown.host.threads
