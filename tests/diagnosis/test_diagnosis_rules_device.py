"""A device that is held back, and compilations that come again."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.compute import recompilation
from hf_efficient.diagnosis.rules.machine import throttling
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step

CUDA = {"settings": settings(device={"type": "cuda"})}


def compiled(folder, at, seconds=1.0, **arguments):
    steps = []
    for number in range(1, 21):
        phases = {"forward": 1.0, **({"compilation": seconds} if number in at else {})}
        steps.append(step(number, phases=phases))
    counted = {"recompiles": 4, "graph_breaks": 1, "break_reasons": {"print": 1}}
    facts = {"settings": settings(arguments=arguments), "compilation": counted}
    return recompilation(case_in(folder, steps, facts=facts))


def test_compiling_again_after_the_warm_up_is_found(tmp_path):
    found = compiled(tmp_path, {1, 8, 11, 15}, packing=False, max_length=128)
    # 20 s of steps, 4 s of compilation, 1 of them in the warm-up.
    assert found.severity == "warning"
    assert found.cost.seconds == pytest.approx(3.0)
    assert found.evidence[1].value == 3
    assert [one.value for one in found.evidence[2:]] == [4, 1, "print"]
    assert found.remedies[0].overrides == {"train.packing": True}
    assert found.remedies[0].gain.share == pytest.approx(3 / 24)


def test_compiling_once_is_how_it_is_meant(tmp_path):
    assert compiled(tmp_path / "a", {1, 2}, seconds=9.0) is None
    assert compiled(tmp_path / "b", {8}, seconds=0.2) is None
    assert recompilation(case_in(tmp_path / "c", [step(n) for n in range(1, 11)])) is None


def test_little_compiling_in_many_steps_is_worth_knowing(tmp_path):
    assert compiled(tmp_path, {8, 11, 15}, seconds=0.01).severity == "info"


def samples(reasons, clock=1500.0):
    return [
        {
            "at_seconds": float(second),
            "gpus": {"0": {"sm_clock_mhz": clock, "temperature_celsius": 90.0}},
            "throttled": {"0": reasons} if second % 2 else {},
        }
        for second in range(1, 21)
    ]


def test_heat_is_a_warning_and_a_power_cap_is_not(tmp_path):
    steps = [step(n) for n in range(1, 21)]
    hot = throttling(case_in(tmp_path / "a", steps, facts=CUDA, system=samples(["thermal", "power_cap"])))
    assert hot.severity == "warning"
    assert "thermal" in hot.title
    assert hot.evidence[0].value == pytest.approx(0.5, abs=0.1)
    assert [(one.value, one.unit) for one in hot.evidence[2:]] == [(90.0, "°C"), (1500.0, "MHz")]
    capped = throttling(case_in(tmp_path / "b", steps, facts=CUDA, system=samples(["power_cap"])))
    assert capped.severity == "info"


def test_a_cool_gpu_is_none_and_an_unseen_one_is_not_judged(tmp_path):
    steps = [step(n) for n in range(1, 21)]
    cool = case_in(tmp_path / "a", steps, facts=CUDA, system=samples([]))
    assert throttling(cool) is None
    assert isinstance(throttling(case_in(tmp_path / "b", steps, facts=CUDA)), Abstention)
    assert throttling(case_in(tmp_path / "c", steps)) is None
