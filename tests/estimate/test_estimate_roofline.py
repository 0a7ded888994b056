"""The roofline: every bound by hand, and that nothing unknown is silently zero."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.roofline import Roofs, operator_time, step_time
from hf_efficient.records.device import OperatorWork

ROOFS = Roofs({"bf16": 1e14}, {"bf16": 5e13}, 1e12, startup_seconds=10e-6, launch_seconds=5e-6)
PRODUCT = OperatorWork("aten::mm", "matmul", "bf16", 20_000_000_000, 40_000_000, 20_000_000, 10)
COPY = OperatorWork("aten::copy_", "copy", "bf16", 0, 50_000_000, 50_000_000, 100)


def work(**changes):
    values = {"name": "op", "family": "elementwise", "dtype": "bf16", "flops": 0, "read_bytes": 0, "written_bytes": 0}
    return OperatorWork(**{**values, "calls": 1, **changes})


def test_a_product_bound_by_math():
    """2e9 FLOPs at 1e14 and 10 us of start-up: 30 us each; 6e6 bytes at 1e12: 6 us each."""
    found = operator_time(PRODUCT, ROOFS)
    assert found.math_seconds == pytest.approx(300e-6)
    assert found.memory_seconds == pytest.approx(60e-6)
    assert found.host_seconds == pytest.approx(50e-6)
    assert found.device_seconds == found.math_seconds
    assert (found.bound, found.device_bound) == ("math", "math")


def test_the_startup_is_an_efficiency_by_size():
    """Half of the rate at ``startup * rate`` FLOPs, 1e9; a tenth at a ninth of them."""
    half = operator_time(work(family="matmul", flops=1_000_000_000), ROOFS)
    assert 1e9 / half.math_seconds == pytest.approx(0.5e14)
    ninth = operator_time(work(family="matmul", flops=1_000_000_000 // 9), ROOFS)
    assert 1e9 / 9 / ninth.math_seconds == pytest.approx(0.1e14)


def test_a_thin_product_is_bound_by_its_bytes():
    """2e8 FLOPs: 2 + 10 us; 30e6 bytes: 30 us."""
    found = operator_time(
        work(family="matmul", flops=200_000_000, read_bytes=20_000_000, written_bytes=10_000_000), ROOFS
    )
    assert found.device_seconds == pytest.approx(30e-6)
    assert found.bound == "bandwidth"


def test_fused_attention_has_a_rate_of_its_own():
    """1e9 FLOPs at 5e13: 20 us, and 10 of start-up."""
    assert operator_time(work(family="attention", flops=10**9), ROOFS).math_seconds == pytest.approx(30e-6)


def test_a_tiny_kernel_is_bound_by_its_launch():
    found = operator_time(work(read_bytes=1_000_000, calls=4), ROOFS)
    assert (found.device_seconds, found.host_seconds) == (pytest.approx(1e-6), pytest.approx(20e-6))
    assert (found.bound, found.device_bound) == ("launch", "bandwidth")


@pytest.mark.parametrize("family", ["elementwise", "reduction", "embedding", "optimizer", "copy", "other"])
def test_other_families_are_held_against_memory_alone(family):
    found = operator_time(work(family=family, dtype="int64", flops=10**15, read_bytes=8_000_000), ROOFS)
    assert found.device_seconds == pytest.approx(8e-6)
    assert found.unknown == ()


def test_a_step_waits_for_the_slower_of_host_and_device():
    """Device 300 + 100 us, host 110 * 5 us: the device waits for 150."""
    found = step_time([PRODUCT, COPY], ROOFS)
    assert found.seconds == pytest.approx(550e-6)
    assert found.device_seconds == pytest.approx(400e-6)
    assert found.host_seconds == pytest.approx(550e-6)
    assert dict(found.seconds_by_bound) == pytest.approx({"math": 300e-6, "bandwidth": 100e-6, "launch": 150e-6})
    assert dict(found.device_seconds_by_family) == pytest.approx({"matmul": 300e-6, "copy": 100e-6})
    assert found.launch_bound_seconds == pytest.approx(500e-6)
    assert [one.work for one in found.operators] == [PRODUCT, COPY]


def test_launching_is_hidden_behind_a_busy_device():
    """Three products: device 900 us, host 150; with the copies' 100 and 500, 1000 against 650."""
    found = step_time([PRODUCT, COPY, PRODUCT, PRODUCT], ROOFS)
    assert found.seconds == found.device_seconds == pytest.approx(1000e-6)
    assert found.seconds_by_bound["launch"] == 0
    assert dict(found.device_seconds_by_family) == pytest.approx({"matmul": 900e-6, "copy": 100e-6})


def test_nothing_is_hidden_on_a_cpu():
    roofs = Roofs({"bf16": 1e14}, {}, 1e12, startup_seconds=10e-6, launch_seconds=5e-6, runs_ahead=False)
    found = step_time([PRODUCT, COPY], roofs)
    assert found.seconds == pytest.approx(950e-6)
    assert sum(found.seconds_by_bound.values()) == pytest.approx(950e-6)
    assert found.seconds_by_bound["launch"] == pytest.approx(550e-6)


def test_a_missing_rate_is_told_and_the_rest_still_counts():
    """fp8 has no rate: the product's bytes are left, 60 us."""
    fp8 = work(name="aten::_scaled_mm", family="matmul", dtype="fp8", flops=10**12, read_bytes=60_000_000)
    found = step_time([fp8, fp8, PRODUCT], ROOFS)
    assert found.unknown == ("FLOP/s of matmul in fp8",)
    assert found.device_seconds == pytest.approx(420e-6)
    no_memory = Roofs({}, {}, None, 0.0, 5e-6)
    assert step_time([PRODUCT, COPY], no_memory).unknown == ("FLOP/s of matmul in bf16", "bytes/s of the memory")
    assert operator_time(work(), no_memory).unknown == ()


def test_no_operators_take_no_time():
    found = step_time([], ROOFS)
    assert (found.seconds, dict(found.device_seconds_by_family), found.unknown) == (0, {}, ())


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"calls": 0}, "calls is 0"), ({"flops": -1}, "flops -1"), ({"written_bytes": -2}, "written_bytes -2")],
)
def test_work_that_cannot_be(changes, told):
    with pytest.raises(ValueError, match=told):
        work(**changes)
