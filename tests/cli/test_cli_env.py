from __future__ import annotations

import json
import types

import pytest

from hf_efficient.facts.environment import Environment, GpuFacts

FACTS = Environment(
    python="3.11.7",
    platform="Linux-6.1-x86_64",
    cpu=None,
    physical_cores=None,
    logical_cores=4,
    usable_cores=2,
    memory_bytes=16 * 2**30,
    gpus=(GpuFacts("NVIDIA A100", 80 * 2**30, "8.0"), GpuFacts("Other", 2**30, None)),
    driver="550.1",
    cuda="12.4",
    versions={"hf_efficient": "0.1.0", "torch": "2.13.0+cu124", "evaluate": None},
    git_commit="abc",
    git_dirty=True,
)


@pytest.fixture
def facts(monkeypatch):
    def install(found: Environment) -> None:
        monkeypatch.setattr("hf_efficient.facts.environment.describe_environment", lambda: found)

    install(FACTS)
    return install


def test_as_text(run, facts):
    assert run("env").out == (
        "hf_efficient  0.1.0\n"
        "torch         2.13.0+cu124\n"
        "evaluate      not installed\n"
        "python        3.11.7\n"
        "platform      Linux-6.1-x86_64\n"
        "cpu           unknown\n"
        "cores         unknown physical, 4 logical, 2 usable\n"
        "memory        16.0 GiB\n"
        "gpu 0         NVIDIA A100, 80.0 GiB, capability 8.0\n"
        "gpu 1         Other, 1.0 GiB\n"
        "driver        550.1\n"
        "cuda          12.4\n"
        "git           abc with changes\n"
    )


@pytest.mark.parametrize(
    ("gpus", "told"), [((), "none that torch can use"), (None, "unknown: torch cannot be imported")]
)
def test_without_a_gpu(run, facts, gpus, told):
    import dataclasses

    facts(dataclasses.replace(FACTS, gpus=gpus, driver=None, cuda=None, git_commit=None, git_dirty=None))
    assert run("env").out.splitlines()[8:] == [
        f"gpu           {told}",
        "driver        none found",
        "cuda          none: torch is built without it, or missing",
        "git           no repository here",
    ]


def test_as_json(run, facts):
    assert json.loads(run("env", "--json").out) == json.loads(json.dumps(FACTS.to_dict()))


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Two devices, measured in no time; their files lie in the folder that is returned."""
    from hf_efficient.profilers import calibration
    from hf_efficient.records.device import Calibration, MatmulRate

    def calibrated(bench):
        rate = MatmulRate("bf16", 4096, 1e14)
        return Calibration(bench.name, "cuda", "2.13.0", "2026-01-02", (rate,), 1e12, 5e-6, bench.name == "Busy")

    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    benches = [types.SimpleNamespace(name="Idle"), types.SimpleNamespace(name="Busy")]
    monkeypatch.setattr(calibration, "benches", lambda: iter(benches))
    monkeypatch.setattr(calibration, "calibrate", calibrated)
    return tmp_path / "calibrations"


def test_calibrate_as_text(run, measured):
    told = run("env", "--calibrate")
    assert told.code == 0
    assert told.out.splitlines() == [
        "Idle, torch 2.13.0, 2026-01-02",
        "  matmul bf16  100 TFLOP/s, at 4096 x 4096",
        "  memory       1,000.0 GB/s, read and written by a copy",
        "  launch       5.00 us of the host for each kernel",
        f"  kept in {measured / 'idle.json'}",
        "Busy, torch 2.13.0, 2026-01-02",
        "  matmul bf16  100 TFLOP/s, at 4096 x 4096",
        "  memory       1,000.0 GB/s, read and written by a copy",
        "  launch       5.00 us of the host for each kernel",
        "  Others used it meanwhile: these figures are uncertain. Measure again when it is idle.",
        f"  kept in {measured / 'busy.json'}",
    ]
    assert told.err == "Measuring Idle ...\nMeasuring Busy ...\n"


def test_calibrate_as_json(run, measured):
    idle, busy = json.loads(run("env", "--calibrate", "--json").out)["calibrations"]
    assert (idle["device_name"], idle["busy"], busy["busy"]) == ("Idle", False, True)
    assert idle.pop("path") == str(measured / "idle.json")
    assert json.loads((measured / "idle.json").read_text()) == idle


def test_calibrate_where_nothing_can_be_kept(run, measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "file"))
    told = run("env", "--calibrate")
    assert told.code == 2
    assert "Set HF_EFFICIENT_CACHE to a folder that can be." in told.err
