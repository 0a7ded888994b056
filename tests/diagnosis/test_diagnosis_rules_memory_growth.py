"""Memory that grows with every step, on the device or in the process."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.memory import memory_growth
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step

MIB = 1 << 20
GIB = 1 << 30


def on_device(peaks):
    held = [{"peak_allocated_bytes": peak, "peak_reserved_bytes": peak} for peak in peaks]
    return [step(number, memory=memory) for number, memory in enumerate(held, start=1)]


def in_process(readings, available=100 * GIB):
    """A reading in the middle of each step of a second; the loop begins 2 s after the process."""
    return [
        {"at_seconds": 2.5 + place, "rss_bytes": value, "host_available_bytes": available}
        for place, value in enumerate(readings)
    ]


def facts(max_steps=None, memory=None):
    stated = {"settings": settings(device={"type": "cuda", "memory_bytes": memory})}
    return stated if max_steps is None else {**stated, "run": {"max_steps": max_steps}}


def test_a_device_that_keeps_something_of_every_step(tmp_path):
    # 4 MiB per step over the 36 steps from the fifth to the fortieth.
    steps = on_device([GIB + 4 * MIB * number for number in range(40)])
    found = memory_growth(case_in(tmp_path, steps, facts=facts(memory=2 * GIB)))
    assert found.title == "the memory of the device grows by 4.0 MiB with every step"
    assert found.severity == "warning"
    assert found.cost.bytes == 4 * MIB * 35
    assert found.cost.seconds is None
    # 1024 - 156 MiB are left.
    assert found.evidence[-1].value == 217
    assert found.remedies[0].gain.bytes == 4 * MIB * 35


def test_a_run_that_will_not_reach_its_end_is_critical(tmp_path):
    steps = on_device([GIB + 4 * MIB * number for number in range(40)])
    found = memory_growth(case_in(tmp_path, steps, facts=facts(max_steps=1000, memory=2 * GIB)))
    assert found.severity == "critical"
    assert found.title.endswith(", and is used up 217 steps further on")


def test_a_process_that_keeps_something_of_every_step(tmp_path):
    steps = [step(number) for number in range(1, 41)]
    samples = in_process([GIB + 10 * MIB * number for number in range(40)])
    found = memory_growth(case_in(tmp_path, steps, system=samples))
    assert found.title == "the memory of the process grows by 10.0 MiB with every step"
    assert found.evidence[0].value == pytest.approx(10 * MIB)


def test_growth_that_is_little_or_ends_is_none(tmp_path):
    little = on_device([GIB + MIB * number for number in range(40)])
    assert memory_growth(case_in(tmp_path / "a", little, facts=facts())) is None
    cache = on_device([GIB + 10 * MIB * min(number, 15) for number in range(40)])
    assert memory_growth(case_in(tmp_path / "b", cache, facts=facts())) is None
    uneven = on_device([GIB + 100 * MIB * (number % 7) for number in range(40)])
    assert memory_growth(case_in(tmp_path / "c", uneven, facts=facts())) is None


def test_without_readings_it_abstains(tmp_path):
    assert isinstance(memory_growth(case_in(tmp_path / "a")), Abstention)
    assert isinstance(memory_growth(case_in(tmp_path / "b", [step(n) for n in range(1, 41)])), Abstention)
    few = case_in(tmp_path / "c", [step(n) for n in range(1, 41)], system=in_process([GIB, 2 * GIB, 3 * GIB]))
    assert "fewer than six" in memory_growth(few).why


def test_a_process_that_grew_by_half_in_a_few_readings_is_no_warning(tmp_path):
    steps = [step(number) for number in range(1, 13)]
    by_half = memory_growth(case_in(tmp_path / "a", steps, system=in_process([GIB + 50 * MIB * n for n in range(12)])))
    assert (by_half.severity, by_half.confidence) == ("info", "possible")
    doubled = memory_growth(case_in(tmp_path / "b", steps, system=in_process([GIB + 300 * MIB * n for n in range(12)])))
    assert (doubled.severity, doubled.confidence) == ("warning", "measured")
