"""The limit of a run that has nothing to mend."""

from __future__ import annotations

import json

import pytest

from hf_efficient.diagnosis.limit import limit_of
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.traces import MATMUL, kernels, leave_trace
from tests.trace.made_trace import ADD


def limit(tmp_path, hfu=None, device=None, trace=(), kind="cuda", operators=None, count=30):
    """Steps of 1 s, on a device of 1e12 FLOP/s."""
    if trace:
        leave_trace(tmp_path, trace)
    more = {} if hfu is None else {"work": {"model_flops": int(hfu * 1e12), "hardware_flops": int(hfu * 1e12)}}
    if device is not None:
        more["device_seconds"] = device
    facts = {
        "settings": settings(device={"type": kind}),
        "work": {"peak_flops_per_second": 1e12, "dtype": "bf16", "reason": None},
    }
    if operators is not None:
        folder = tmp_path / "profile"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "operators.rank0.json").write_text(json.dumps(operators), encoding="utf-8")
        told = {"cost_seconds": 0.1, "own_seconds": 0.1, "steps": 3, "files": ["profile/operators.rank0.json"]}
        facts["profile"] = {"trace": told}
    steps = [step(n, phases={"forward": 0.4, "backward": 0.6}, **more) for n in range(1, count + 1)]
    return limit_of(case_in(tmp_path, steps, facts=facts))


def table(**seconds):
    """An operator table of 10 s; by operator, its seconds."""
    rows = [
        {"name": f"aten::{name}", "calls": 1, "self_cpu_seconds": value, "self_device_seconds": None, "flops": None}
        for name, value in seconds.items()
    ]
    known = {"rank": 0, "steps": 3, "wall_seconds": 10.0, "self_device_seconds": None, "operators": rows}
    return {**known, "self_cpu_seconds": sum(seconds.values())}


def test_half_of_the_peak_is_bound_by_arithmetic(tmp_path):
    found = limit(tmp_path, hfu=0.6)
    assert found.kind == "math"
    assert "60% of the dense peak in bf16" in found.text


def test_without_deeper_instruments_the_rest_is_unknown(tmp_path):
    assert limit(tmp_path / "a", hfu=0.3).kind == "unknown"
    assert limit(tmp_path / "b").kind == "unknown"
    assert "too few" in limit(tmp_path / "c", hfu=0.6, count=3).text


def test_a_device_that_waits_between_steps_is_bound_by_the_host(tmp_path):
    found = limit(tmp_path, hfu=0.6, device={"forward": 0.3, "exposed_wait": 0.2})
    assert found.kind == "host"
    assert "between steps in 20%" in found.text


def test_a_trace_tells_launches_from_the_host(tmp_path):
    short = kernels(*((MATMUL, 10.0 * n, 10.0 * n + 5, 10.0 * n - 2) for n in range(1, 11)))
    found = limit(tmp_path / "a", hfu=0.1, trace=short)
    assert found.kind == "launch"
    assert "47.4%" in found.text
    late = kernels((MATMUL, 100, 400, 10), (MATMUL, 600, 1100, 590))
    assert limit(tmp_path / "b", hfu=0.1, trace=late).kind == "host"


def test_a_trace_tells_bandwidth_from_arithmetic(tmp_path):
    found = limit(tmp_path / "a", hfu=0.2, trace=kernels((MATMUL, 0, 400, 0), (ADD, 400, 1000, 10)))
    assert found.kind == "bandwidth"
    assert "take 60% of the time" in found.text
    found = limit(tmp_path / "b", hfu=0.3, trace=kernels((MATMUL, 0, 600, 0), (ADD, 600, 1000, 10)))
    assert found.kind == "math"
    assert "60% of the time, at 50% of the peak" in found.text
    assert found.evidence[-1].value == pytest.approx(0.5)


def test_on_a_cpu_the_operator_table_tells(tmp_path):
    found = limit(tmp_path / "a", hfu=0.3, kind="cpu", operators=table(mm=6.0, mul=2.0))
    assert found.kind == "math"
    assert limit(tmp_path / "b", hfu=0.1, kind="cpu", operators=table(mm=2.0, mul=6.0)).kind == "bandwidth"
    found = limit(tmp_path / "c", hfu=0.1, kind="cpu", operators=table(mm=2.0, mul=1.0))
    assert found.kind == "host"
    assert "70% of the time is spent outside of any operator" in found.text
    found = limit(tmp_path / "d", hfu=0.1, kind="cpu", operators=table(mm=4.0, mul=3.0))
    assert found.kind == "unknown"
    assert "products take 40% of the time, moving memory 30%, the host outside of operators 30%" in found.text
