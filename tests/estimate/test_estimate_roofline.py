"""The roofline by hand, and which figure becomes a roof: measured here, published, or the others' median."""

import dataclasses

import pytest

from hf_efficient.estimate.roofline import (
    Roofs,
    accelerator_roofs,
    cpu_roofs,
    operator_time,
    startup_seconds,
    step_time,
)
from hf_efficient.facts.tables import accelerator
from hf_efficient.records.device import Calibration, MatmulRate, OperatorWork

ROOFS = Roofs({"bf16": 1e14}, {"bf16": 5e13}, 1e12, startup_seconds=10e-6, launch_seconds=5e-6)
PRODUCT = OperatorWork("aten::mm", "matmul", "bf16", 20_000_000_000, 40_000_000, 20_000_000, 10)
COPY = OperatorWork("aten::copy_", "copy", "bf16", 0, 50_000_000, 50_000_000, 100)


def work(family="elementwise", dtype="bf16", flops=0, read_bytes=0, written_bytes=0, calls=1):
    return OperatorWork("op", family, dtype, flops, read_bytes, written_bytes, calls)


def test_products():
    """2e9 FLOPs at 1e14 and 10 us of start-up: 30 us each; 6e6 bytes at 1e12: 6 us each."""
    found = operator_time(PRODUCT, ROOFS)
    assert found.math_seconds == pytest.approx(300e-6)
    assert found.memory_seconds == pytest.approx(60e-6)
    assert found.host_seconds == pytest.approx(50e-6)
    assert found.device_seconds == found.math_seconds
    # Half of the rate at ``startup * rate`` FLOPs, 1e9; a tenth at a ninth of them.
    half = operator_time(work(family="matmul", flops=1_000_000_000), ROOFS)
    assert 1e9 / half.math_seconds == pytest.approx(0.5e14)
    ninth = operator_time(work(family="matmul", flops=1_000_000_000 // 9), ROOFS)
    assert 1e9 / 9 / ninth.math_seconds == pytest.approx(0.1e14)
    # 2e8 FLOPs: 2 + 10 us; 30e6 bytes: 30 us.
    found = operator_time(work("matmul", flops=200_000_000, read_bytes=20_000_000, written_bytes=10_000_000), ROOFS)
    assert found.device_seconds == pytest.approx(30e-6)


def test_other_operators():
    """1e9 FLOPs at 5e13: 20 us, and 10 of start-up."""
    assert operator_time(work(family="attention", flops=10**9), ROOFS).math_seconds == pytest.approx(30e-6)
    # A backward at 0.8 of that rate: 25 us, and 10.
    slower = dataclasses.replace(ROOFS, attention_backward_share=0.8)
    backward = dataclasses.replace(work(family="attention", flops=10**9), name="aten::_flash_attention_backward")
    assert operator_time(backward, slower).math_seconds == pytest.approx(35e-6)
    found = operator_time(work(read_bytes=1_000_000, calls=4), ROOFS)
    assert (found.device_seconds, found.host_seconds) == (pytest.approx(1e-6), pytest.approx(20e-6))
    found = operator_time(work(family="reduction", dtype="int64", flops=10**15, read_bytes=8_000_000), ROOFS)
    assert found.device_seconds == pytest.approx(8e-6)
    assert found.unknown == ()


def test_a_step_waits_for_the_slower_of_host_and_device():
    """Device 300 + 100 us, host 110 * 5 us: the device waits for 150."""
    found = step_time([PRODUCT, COPY], ROOFS)
    assert found.seconds == pytest.approx(550e-6)
    assert dict(found.seconds_by_bound) == pytest.approx({"math": 300e-6, "bandwidth": 100e-6, "launch": 150e-6})
    # Three products: device 900 us, host 150; with the copies' 100 and 500, 1000 against 650.
    found = step_time([PRODUCT, COPY, PRODUCT, PRODUCT], ROOFS)
    assert found.seconds == pytest.approx(1000e-6)
    assert found.seconds_by_bound["launch"] == 0
    roofs = Roofs({"bf16": 1e14}, {}, 1e12, startup_seconds=10e-6, launch_seconds=5e-6, runs_ahead=False)
    found = step_time([PRODUCT, COPY], roofs)
    assert found.seconds == pytest.approx(950e-6)
    assert sum(found.seconds_by_bound.values()) == pytest.approx(950e-6)
    assert found.seconds_by_bound["launch"] == pytest.approx(550e-6)
    assert step_time([], ROOFS).seconds == 0


def test_a_missing_rate_is_reported_and_the_rest_still_counts():
    """fp8 has no rate: the product's bytes are left, 60 us."""
    fp8 = work(family="matmul", dtype="fp8", flops=10**12, read_bytes=60_000_000)
    found = step_time([fp8, fp8, PRODUCT], ROOFS)
    assert found.unknown == ("FLOP/s of matmul in fp8",)
    assert found.seconds == pytest.approx(420e-6)
    no_memory = Roofs({}, {}, None, 0.0, 5e-6)
    assert step_time([PRODUCT, COPY], no_memory).unknown == ("FLOP/s of matmul in bf16", "bytes/s of the memory")
    assert operator_time(work(), no_memory).unknown == ()


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
    """H100 SXM: 705.8 TFLOP/s in bf16, 1402.6 in fp8, 2903 GB/s; fp16 takes bf16's share of the same peak."""
    found = accelerator_roofs(accelerator("H100 SXM"))
    assert found.matmul_flops_per_second["bf16"] == pytest.approx(705.8e12)
    assert found.matmul_flops_per_second["fp8"] == pytest.approx(1402.6e12)
    assert found.matmul_flops_per_second["fp16"] == pytest.approx(705.8e12)
    assert found.attention_flops_per_second == pytest.approx({"bf16": 346.29e12, "fp16": 346.29e12})
    assert found.bytes_per_second == pytest.approx(2.903e12)
    assert (found.startup_seconds, found.launch_seconds) == pytest.approx((9.1e-6, 6.6e-6))
    assert found.runs_ahead
    unstated = dataclasses.replace(accelerator("H100 NVL"), bandwidth_bytes_per_second=None)
    assert accelerator_roofs(unstated).bytes_per_second is None
    t4 = accelerator_roofs(accelerator("T4"))
    assert "bf16" not in t4.matmul_flops_per_second
    assert set(t4.attention_flops_per_second) == {"fp16"}


def test_what_was_measured_comes_first():
    found = accelerator_roofs(accelerator("H200"), MEASURED)
    assert found.matmul_flops_per_second["bf16"] == 100e12
    assert found.matmul_flops_per_second["fp32"] == 50e12
    assert found.matmul_flops_per_second["fp8"] == pytest.approx(1453.4e12)
    assert (found.bytes_per_second, found.launch_seconds) == (4.25e12, 7e-6)
    assert found.startup_seconds == pytest.approx(10e-6 - 2.68435456e-6)
    found = cpu_roofs(dataclasses.replace(MEASURED, device_type="cpu", device_name="A CPU", threads=2))
    assert found.matmul_flops_per_second == {"bf16": 100e12, "fp32": 50e12}
    assert found.attention_flops_per_second == {"bf16": 100e12, "fp32": 50e12}
    assert (found.startup_seconds, found.runs_ahead) == (0.0, False)


def test_startup_of_published_products():
    """Triton's tutorial: 8.0, 9.1 and 10.1 us beyond the fastest rate; 2048 is faster than half of it."""
    rates = ((256, 4.096), (512, 26.214401), (1024, 110.376426), (2048, 223.696203), (2304, 228.592087))
    found = startup_seconds(MatmulRate("fp16", size, tflops * 1e12) for size, tflops in rates)
    assert found == pytest.approx(9.0657e-6, abs=1e-10)
    assert startup_seconds([MatmulRate("fp16", 4096, 60e12), MatmulRate("fp16", 8192, 100e12)]) == 0.0
