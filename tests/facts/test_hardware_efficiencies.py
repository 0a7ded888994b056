"""The table of what kernels reach: its figures, where they come from, and that a guess says so."""

from __future__ import annotations

import statistics

import pytest

from hf_efficient.facts.accelerators import (
    DTYPES,
    accelerator,
    accelerators,
    attention_efficiency,
    bandwidth_efficiency,
    launch_overhead,
    matmul_efficiency,
    matmul_startup,
)
from hf_efficient.facts.tables import rows

# One share per card, in order: T4 25/65 .385, A10 56/125 .448, MI300X 668.4/1307.4 .511, L4 66/121 .545,
# H100 PCIe 449/756.5 .594, A6000 95/154.8 .614, B200 1745/2250 .776, H100 SXM 794.5/989.4 .803, A100 PCIe 252.9/312
# .811, A100 SXM 271.2/312 .869, PRO 6000 439.44/503.8 .872, 4090 168.64/165.2 1.021, 5090 247.77/209.5 1.183
MEDIAN_MATMUL = 1745 / 2250
# 239.6/320 .749, 1536/2039 .753, 469/600 .782, 235/300 .783, 4177.285/5300 .7882, 1226.1/1555 .7885, 1630/2039 .799,
# 1310.72/1555 .843, 2903/3350 .867, 831/936.2 .888, 921.85/1008 .915
MEDIAN_BANDWIDTH = 1226.1 / 1555


@pytest.mark.parametrize(
    ("name", "dtype", "share", "estimated"),
    [
        ("A100 80GB SXM", "bf16", 271.2 / 312, False),
        ("A100 80GB SXM", "fp16", 271.2 / 312, True),
        ("A100 40GB PCIe", "bf16", 252.9 / 312, False),
        ("H200", "fp8", 1453.4 / 1978.9, False),
        ("H200", "tf32", 794.5 / 989.4, True),
        ("RTX PRO 6000", "fp32", 83.6 / 125.95, False),
        ("RTX A6000", "bf16", 95 / 154.8, True),
        ("RTX 5090", "bf16", 247.77 / 209.5, False),
        ("L4", "bf16", 66 / 121, False),
        ("L4", "tf32", 66 / 121, True),
        ("L40S", "bf16", MEDIAN_MATMUL, True),
    ],
)
def test_products(name, dtype, share, estimated):
    found = matmul_efficiency(accelerator(name), dtype)
    assert found.value == pytest.approx(share)
    assert found.estimated is estimated


def test_where_a_share_comes_from():
    assert matmul_efficiency(accelerator("B200"), "bf16").source.endswith("comparison-table (2026-11-20)")
    assert matmul_efficiency(accelerator("B200"), "fp16").source.startswith("bf16 in place of fp16: https://")
    assert (
        matmul_efficiency(accelerator("RTX 3090"), "fp16").source == "the median of 13 published figures of other cards"
    )


@pytest.mark.parametrize(
    ("name", "share", "estimated"),
    [
        ("H100 SXM", 2903 / 3350, False),
        ("MI300X", 4177.285 / 5300, False),
        ("A100 80GB SXM", 1536 / 2039, False),
        ("H200", MEDIAN_BANDWIDTH, True),
        ("H100 NVL", MEDIAN_BANDWIDTH, True),
    ],
)
def test_memory(name, share, estimated):
    found = bandwidth_efficiency(accelerator(name))
    assert (found.value, found.estimated) == (pytest.approx(share), estimated)


def test_attention_is_always_an_estimate():
    assert attention_efficiency(accelerator("A100 40GB SXM")).value == 0.615
    assert attention_efficiency(accelerator("H200")).value == 0.35
    other = attention_efficiency(accelerator("RTX 4090"))
    assert (other.value, other.estimated) == (statistics.median([0.615, 0.35]), True)


def test_overheads():
    assert launch_overhead("cuda").value == pytest.approx(6.6e-6)
    assert launch_overhead("cpu").value == pytest.approx(3.6e-6)
    assert matmul_startup().value == pytest.approx(9.1e-6)
    assert all(found.estimated for found in (launch_overhead("cuda"), launch_overhead("cpu"), matmul_startup()))


ESTIMATED = ("attention", "launch", "matmul_startup", "collective_overhead")


def test_every_row_is_whole():
    names = {one.name for one in accelerators()} | {"cuda", "cpu"}
    figures = {"matmul": "measured_tflops", "attention": "share"}
    figures |= dict.fromkeys(("bandwidth", "collectives", "host_link"), "measured_gb_per_second")
    for row in rows("efficiencies"):
        assert set(row["of"]) <= names
        assert row[figures.get(row["figure"], "microseconds")] > 0
        assert row["source"].startswith("https://")
        assert str(row["date"]) == "2026-11-20"
        assert ("estimated" in row) == (row["figure"] in ESTIMATED)
        assert row.get("dtype", "bf16") in DTYPES


def test_every_accelerator_has_a_share_of_what_it_states():
    """A third to five quarters of the peak, 70 to 95% of the bandwidth: a slip in a row or a unit would show here."""
    for one in accelerators():
        for dtype in one.peak_flops_per_second:
            assert 1 / 3 < matmul_efficiency(one, dtype).value < 1.25
        assert 0.7 < bandwidth_efficiency(one).value < 0.95
