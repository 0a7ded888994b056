"""Which figure becomes a roof: measured here, published, or the others' median."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.estimate.roofline import accelerator_roofs, cpu_roofs, startup_seconds
from hf_efficient.facts.accelerators import accelerator
from hf_efficient.records.device import Calibration, MatmulRate

MEASURED = Calibration(
    "NVIDIA H200",
    "cuda",
    "2.13.0",
    "2026-01-02",
    (
        MatmulRate("bf16", 512, 26.8435456e12),
        MatmulRate("bf16", 8192, 100e12),
        MatmulRate("bf16", 16384, 90e12),
        MatmulRate("fp32", 8192, 50e12),
    ),
    bandwidth_bytes_per_second=4.25e12,
    launch_seconds=7e-6,
)


def test_published_shares_of_the_stated_figures():
    """H100 SXM: 794.5 TFLOP/s in bf16, 1402.6 in fp8, 2903 GB/s; fp16 takes bf16's share of the same peak."""
    found = accelerator_roofs(accelerator("H100 SXM"))
    assert found.roofs.matmul_flops_per_second["bf16"] == pytest.approx(794.5e12)
    assert found.roofs.matmul_flops_per_second["fp8"] == pytest.approx(1402.6e12)
    assert found.roofs.matmul_flops_per_second["fp16"] == pytest.approx(794.5e12)
    assert found.roofs.attention_flops_per_second == pytest.approx({"bf16": 346.29e12, "fp16": 346.29e12})
    assert found.roofs.bytes_per_second == pytest.approx(2.903e12)
    assert (found.roofs.startup_seconds, found.roofs.launch_seconds) == pytest.approx((9.1e-6, 6.6e-6))
    assert found.roofs.runs_ahead
    assert set(found.sources) - set(found.estimated) == {"matmul bf16", "matmul fp8", "memory"}
    assert found.sources["memory"] == "https://github.com/aigatech/vpbenchmarking (2026-11-20)"


def test_what_is_not_stated_has_no_roof():
    unstated = dataclasses.replace(accelerator("H100 NVL"), bandwidth_bytes_per_second=None)
    assert accelerator_roofs(unstated).roofs.bytes_per_second is None
    t4 = accelerator_roofs(accelerator("T4")).roofs
    assert "bf16" not in t4.matmul_flops_per_second
    assert set(t4.attention_flops_per_second) == {"fp16"}


def test_what_was_measured_comes_first():
    found = accelerator_roofs(accelerator("H200"), MEASURED)
    assert found.roofs.matmul_flops_per_second["bf16"] == 100e12
    assert found.roofs.matmul_flops_per_second["fp32"] == 50e12
    assert found.roofs.matmul_flops_per_second["fp8"] == pytest.approx(1453.4e12)
    assert (found.roofs.bytes_per_second, found.roofs.launch_seconds) == (4.25e12, 7e-6)
    assert found.roofs.startup_seconds == pytest.approx(10e-6 - 2.68435456e-6)
    assert found.sources["matmul bf16"] == "measured on NVIDIA H200 (2026-01-02)"
    assert set(found.sources) - set(found.estimated) == {
        "matmul bf16", "matmul fp32", "matmul fp8", "memory", "startup", "launch",
    }  # fmt: skip
    assert found.estimated == ("matmul tf32", "matmul fp16", "attention fp16", "attention bf16", "matmul int8")


def test_a_busy_machine_is_told():
    found = cpu_roofs(dataclasses.replace(MEASURED, device_type="cpu", device_name="A CPU", busy=True, threads=2))
    assert found.sources["memory"] == "measured on A CPU while it was busy (2026-01-02)"
    assert found.roofs.matmul_flops_per_second == {"bf16": 100e12, "fp32": 50e12}
    assert found.roofs.attention_flops_per_second == {"bf16": 100e12, "fp32": 50e12}
    assert (found.roofs.startup_seconds, found.roofs.runs_ahead, found.estimated) == (0.0, False, ())


def test_startup_of_published_products():
    """Triton's tutorial: 8.0, 9.1 and 10.1 us beyond the fastest rate; 2048 is faster than half of it."""
    rates = ((256, 4.096), (512, 26.214401), (1024, 110.376426), (2048, 223.696203), (2304, 228.592087))
    found = startup_seconds(MatmulRate("fp16", size, tflops * 1e12) for size, tflops in rates)
    assert found == pytest.approx(9.0657e-6, abs=1e-10)


def test_no_small_products_no_startup():
    assert startup_seconds([MatmulRate("fp16", 4096, 60e12), MatmulRate("fp16", 8192, 100e12)]) == 0.0
    assert startup_seconds([]) == 0.0
