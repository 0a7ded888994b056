"""The operator table, on hand-made events whose sums can be worked out."""

from types import SimpleNamespace

import pytest
import torch

from hf_efficient.profilers.torch_trace import OperatorSums


def Event(name, start, lasted, device="CPU", **more):
    """Has what the table reads of a ``_KinetoEvent``; times in nanoseconds."""
    values = {
        "name": name,
        "device_type": SimpleNamespace(name=device),
        "start_ns": start,
        "duration_ns": lasted,
        "start_thread_id": more.get("thread", 1),
        "correlation_id": more.get("id", 0),
        "linked_correlation_id": more.get("launched_by", 0),
        "flops": more.get("work", 0),
        "shapes": more.get("of", []),
        "is_python_function": more.get("python", False),
        "is_user_annotation": more.get("annotation", False),
    }
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def rows(table):
    return {
        (row.name, row.shapes): (row.calls, round(row.self_cpu_seconds * 1e9), row.self_device_seconds, row.flops)
        for row in table.operators
    }


def test_self_times_on_the_host():
    sums = OperatorSums()
    sums.add(
        [
            Event("ProfilerStep#5", 0, 1000, annotation=True),
            Event("model.py(12): forward", 0, 900, python=True),
            Event("aten::linear", 100, 500, of=[[2, 3], [4, 3], []]),
            Event("aten::addmm", 200, 300, of=[[4], [2, 3], [3, 4]], work=48),
            Event("aten::copy_", 300, 50),
            Event("aten::addmm", 700, 100, of=[[4], [2, 3], [3, 4]], work=48),
            Event("aten::addmm", 720, 40, thread=2, of=[[8], [2, 3], [3, 8]], work=96),  # beside it, not inside
            Event("[memory]", 750, 0),
        ]
    )
    table = sums.table(0, 10)
    assert rows(table) == {
        ("aten::linear", "[2, 3] [4, 3]"): (1, 200, None, 0),
        ("aten::addmm", "[4] [2, 3] [3, 4]"): (2, 350, None, 96),
        ("aten::addmm", "[8] [2, 3] [3, 8]"): (1, 40, None, 96),
        ("aten::copy_", ""): (1, 50, None, 0),
    }
    assert [row.self_cpu_seconds for row in table.operators] == pytest.approx([350e-9, 200e-9, 50e-9, 40e-9])
    assert (table.steps, table.self_device_seconds) == (1, None)
    assert (table.wall_seconds, table.self_cpu_seconds) == pytest.approx((1000e-9, 640e-9))


def test_kernels_belong_to_the_operator_that_launched_them():
    sums = OperatorSums()
    sums.add(
        [
            Event("aten::mm", 0, 100, id=7),
            Event("aten::add", 200, 300, id=8),
            Event("gemm", 50, 4000, device="CUDA", launched_by=7),
            Event("fill", 60, 500, device="CUDA", launched_by=7),
            Event("axpy", 300, 1000, device="CUDA", launched_by=8),
            Event("Memcpy HtoD", 300, 250, device="CUDA", launched_by=99),
            Event("ProfilerStep#5", 0, 9000, device="CUDA", annotation=True),
        ]
    )
    table = sums.table(3, 1)
    assert [(row.name, row.self_device_seconds) for row in table.operators] == [("aten::mm", pytest.approx(4500e-9))]
    assert table.self_device_seconds == pytest.approx(5750e-9)  # the copy has no operator, but was on the device
    assert (table.rank, table.left_out) == (3, 1)


def test_torch_itself_agrees():
    layer = torch.nn.Linear(16, 16)
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profiler:
        for _ in range(3):
            layer(torch.ones(4, 16)).relu().sum().backward()
    sums = OperatorSums()
    sums.add(profiler.profiler.kineto_results.events())
    (found,) = [row for row in sums.table(0, 1000).operators if row.name == "aten::addmm"]
    (theirs,) = [row for row in profiler.key_averages() if row.key == "aten::addmm"]
    assert (found.calls, found.flops, found.shapes) == (3, 3 * 2 * 4 * 16 * 16, "[16] [4, 16] [16, 16]")
    assert found.calls == theirs.count
    assert found.self_cpu_seconds == pytest.approx(theirs.self_cpu_time_total * 1e-6)
