"""Meters: NVML by replayed recordings, RAPL from a made-up sysfs, estimates by hand."""

import os
import re
import sys
import types
from pathlib import Path

import pytest
from replayed_nvml import replay

from hf_efficient.recording import meters


def test_the_device_is_found_by_its_uuid(monkeypatch):
    nvml = replay(monkeypatch, "counter")
    assert meters.nvml_meter(meters.CudaDevice(0, "GPU", nvml.uuid)).name == "GPU 3"
    with pytest.raises(meters.MeterError, match=r"^NVML: Not Found$"):
        meters.nvml_meter(meters.CudaDevice(0, "GPU", "GPU-other"))


@pytest.mark.parametrize(
    ("recording", "told"),
    [
        ("no_driver", "NVML: Driver Not Loaded"),
        ("no_library", "NVML: NVML Shared Library Not Found"),
        ("sliced", "it is a MIG slice, and NVML meters the whole GPU only"),
        ("neither", "NVML has neither energy (Not Supported) nor power (Not Supported) of it"),
    ],
)
def test_without_nvml_there_is_a_reason(monkeypatch, recording, told):
    with pytest.raises(meters.MeterError, match=f"^{re.escape(told)}$"):
        meters.nvml_meter(replay(monkeypatch, recording).device())


def test_a_gpu_that_nothing_measures_draws_its_tdp(monkeypatch):
    """The H100 SXM's 700 W for 10 s."""
    clock = iter([50.0, 50.0, 60.0])
    monkeypatch.setattr(meters.time, "perf_counter", lambda: next(clock))
    (meter,), faults = meters.gpu_meters([replay(monkeypatch, "no_driver").device(index=1)])
    assert faults == {"GPU 1": "NVML: Driver Not Loaded"}
    assert (meter.name, meter.source, meter.unit) == ("GPU 1", "estimate", "joules")
    assert (meter.read(), meter.read()) == (0.0, 7000.0)
    assert meter.note == "its TDP of 700 W all the time, an upper bound (H100 SXM); NVML: Driver Not Loaded"


def zone(root: Path, folder: str, name: str, energy_uj: int, range_uj: int = 262_143_328_850) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return path


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two sockets, the first with memory metered apart; and what must not be added to them."""
    root = tmp_path / "powercap"
    zone(root, "intel-rapl:0", "package-0", 1_500_000)
    zone(root, "intel-rapl:0:0", "core", 900_000)
    zone(root, "intel-rapl:0:1", "dram", 250_000, 65_712_999_613)
    zone(root, "intel-rapl:1", "package-1", 3_000_000)
    zone(root, "intel-rapl:2", "psys", 9_000_000)
    zone(root, "intel-rapl-mmio:0", "package-0", 1_500_000)
    return root


def test_rapl_counts_sockets_and_memory(powercap):
    found = meters.rapl_meters(powercap)
    assert [(meter.name, meter.read(), meter.range_joules) for meter in found] == [
        ("CPU package 0", 1.5, 262_143.32885),
        ("memory of CPU package 0", 0.25, 65_712.999613),
        ("CPU package 1", 3.0, 262_143.32885),
    ]
    assert len({meter.id for meter in found}) == 3
    (powercap / "intel-rapl:0/energy_uj").write_text("2000000\n")
    assert found[0].read() == 2.0
    assert {meter.source for meter in found} == {"rapl"}


def test_rapl_that_belongs_to_root(powercap, monkeypatch):
    counter = powercap / "intel-rapl:0/energy_uj"
    counter.chmod(0)
    if os.access(counter, os.R_OK):  # whoever runs this may read everything
        read = Path.read_text

        def denied(self: Path, *args, **kwargs) -> str:
            if self == counter:
                raise PermissionError(13, "Permission denied", str(self))
            return read(self, *args, **kwargs)

        monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(meters.MeterError, match=f"^RAPL: {counter} may be read by root only$"):
        meters.rapl_meters(powercap)


def test_the_cpu_by_the_table(monkeypatch):
    """Two CPUs for 10 s and 15 CPU seconds: 2 * 10 * 0.7433 + 15 * (3.84 - 0.7433) = 61.317 J."""
    times, busy = iter([100.0, 110.0]), iter([7.0, 22.0])
    monkeypatch.setattr(meters.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(meters, "cpu_seconds", lambda: next(busy))
    meter = meters.cpu_estimate(2, "no RAPL")
    assert meter.read() == pytest.approx(61.3167, abs=1e-4)
    assert (meter.name, meter.source) == ("CPU", "estimate")
    assert meter.note == (
        "0.74 W for each of 2 CPUs and 3.10 W more for each that is busy, memory included "
        "(Cloud Carbon Footprint, mean of aws, gcp, azure, read 2026-11-20); no RAPL"
    )


class Properties:
    name = "NVIDIA H100 80GB HBM3"
    uuid = "5c0f7a2e-1111-2222-3333-444455556666"


@pytest.fixture
def torch_with_four(monkeypatch):
    """What torch tells of four GPUs, of which the process holds memory on the second and third."""

    def books(index):
        current = {"all": {"current": 2**20 if index in (1, 2) else 0}}
        return {"allocated_bytes": current, "reserved_bytes": current}

    cuda = types.SimpleNamespace(
        is_initialized=lambda: True,
        current_device=lambda: 1,
        device_count=lambda: 4,
        memory=types.SimpleNamespace(memory_stats_as_nested_dict=books),
        get_device_properties=lambda index: Properties,
    )
    torch = types.SimpleNamespace(cuda=cuda, version=types.SimpleNamespace(hip=None))
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_devices_are_those_that_the_process_computes_on(torch_with_four, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert meters.current_device() == 1
    assert [device.index for device in meters.cuda_devices(1)] == [1, 2]
    monkeypatch.setenv("WORLD_SIZE", "4")
    (own,) = meters.cuda_devices(3)
    assert own == meters.CudaDevice(3, Properties.name, f"GPU-{Properties.uuid}")


def test_a_process_that_has_not_started_cuda_has_none(torch_with_four):
    torch_with_four.cuda.is_initialized = lambda: False
    assert (meters.current_device(), meters.cuda_devices(0)) == (None, [])
