"""The tables of accelerators, of what kernels reach and of links: figures, names, and that nothing is guessed."""

import statistics

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.facts.tables import (
    DTYPES,
    USABLE_SHARE,
    accelerator,
    accelerator_of_device,
    accelerators,
    attention_efficiency,
    bandwidth_efficiency,
    collective_bandwidth,
    host_bandwidth,
    matmul_efficiency,
    overhead_seconds,
    rows,
)


def test_an_a100():
    held = accelerator("A100 80GB SXM")
    assert (held.memory_bytes, held.bandwidth_bytes_per_second, held.tdp_watts) == (85_899_345_920, 2.039e12, 400)
    assert [held.peak(dtype) for dtype in ("bf16", "tf32", "fp8")] == [312e12, 156e12, None]


@pytest.mark.parametrize(
    ("device", "name", "bf16"),
    [
        ("Tesla T4", "T4", None),
        ("NVIDIA A10G", "A10G", 70e12),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2e12),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell", 503.8e12),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", 312e12),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe", 312e12),
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 989.4e12),
        ("AMD Instinct MI300X", "MI300X", 1307.4e12),
    ],
)
def test_what_torch_calls_a_device(device, name, bf16):
    held = accelerator_of_device(device)
    assert held is not None
    assert (held.name, held.peak("bf16")) == (name, bf16)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a100",
            "'a100' is no accelerator with known figures. Did you mean A100 40GB SXM, A100 40GB PCIe, A100 80GB SXM, "
            "A100 80GB PCIe?",
        ),
        ("H10O PCIe", "'H10O PCIe' is no accelerator with known figures. Did you mean H100 PCIe?"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, message):
    with pytest.raises(SetupError) as error:
        accelerator(name)
    assert str(error.value).startswith(message[:-1])


def test_every_row_is_whole_and_has_its_sources():
    for one in accelerators():
        assert set(one.peak_flops_per_second) <= set(DTYPES)
        assert all(text.strip() for text in (one.vendor, one.source))
        assert one.date == "2026-11-20"
        assert one.device_names
    for row in rows("accelerators"):
        assert row["read_at"].strip()
        assert "usable_gib" not in row or str(row.get("usable_date", row["date"])) == "2026-11-20"


@pytest.mark.parametrize(("name", "gibibytes"), [("T4", 14.56), ("L40S", 44.42), ("H200", 139.80)])
def test_what_torch_reports_as_the_total(name, gibibytes):
    held = accelerator(name)
    assert (held.usable_memory_bytes, held.usable_is_estimated) == (round(gibibytes * 2**30), False)


def test_usable_memory_is_less_than_the_stated_and_sourced_or_an_estimate():
    shares = {one.name: one.usable_memory_bytes / one.memory_bytes for one in accelerators()}
    assert max(shares.values()) < 1
    assert USABLE_SHARE == 14.56 / 16
    assert min(shares.values()) == shares["T4"] == pytest.approx(USABLE_SHARE)
    assert [one.name for one in accelerators() if one.usable_is_estimated] == ["A10"]
    assert accelerator("A10").usable_memory_bytes == round(21.84 * 2**30)


def test_names_are_unique():
    names = [one.name for one in accelerators()]
    devices = [name for one in accelerators() for name in one.device_names]
    assert len(set(names)) == len(names) == 20
    assert len(set(devices)) == len(devices)


def test_eight_bits_run_twice_as_fast_as_sixteen():
    """A figure with sparsity among dense ones would show here."""
    for one in accelerators():
        sixteen = one.peak("fp16")
        for eight in (one.peak("fp8"), one.peak("int8")):
            if one.name == "RTX 4090" and eight == one.peak("int8"):
                continue  # its integers are not held back as its fp16 with accumulation in fp32 is
            assert eight is None or sixteen is None or eight == pytest.approx(2 * sixteen, rel=0.02)


# One share per card, in order: T4 25/65 .385, A10 56/125 .448, L40S 183.7/362 .507, MI300X 668.4/1307.4 .511, L4
# 66/121 .545, H100 PCIe 449/756.5 .594, A6000 95/154.8 .614, B200 1470.9/2250 .654, H200 680.3/989.4 .688, H100 SXM
# 705.8/989.4 .713, PRO 6000 384.5/503.8 .763, A100 247.3/312 .793; GeForce: 4090 168.64/165.2 1.021, 5090
# 247.77/209.5 1.183
MEDIAN_MATMUL = (449 / 756.5 + 95 / 154.8) / 2
MEDIAN_GEFORCE = (168.64 / 165.2 + 247.77 / 209.5) / 2


# 239.6/320 .749, 1536/2039 .753, 469/600 .782, 235/300 .783, 4177.285/5300 .7882, 1226.1/1555 .7885, 1630/2039 .799,
# 1310.72/1555 .843, 2903/3350 .867, 831/936.2 .888, 921.85/1008 .915
MEDIAN_BANDWIDTH = 1226.1 / 1555


def test_products():
    shares = {
        ("A100 80GB SXM", "bf16"): 247.3 / 312,
        ("A100 80GB SXM", "fp16"): 247.3 / 312,
        ("H200", "fp8"): 1453.4 / 1978.9,
        ("H200", "tf32"): 680.3 / 989.4,
        ("RTX 5090", "bf16"): 247.77 / 209.5,
        ("L4", "tf32"): 66 / 121,
        ("A10G", "bf16"): MEDIAN_MATMUL,
        ("RTX 3090", "bf16"): MEDIAN_GEFORCE,
    }
    assert {of: matmul_efficiency(accelerator(of[0]), of[1]) for of in shares} == pytest.approx(shares)


def test_memory_attention_and_overheads():
    shares = {"H100 SXM": 2903 / 3350, "MI300X": 4177.285 / 5300, "H200": MEDIAN_BANDWIDTH}
    assert {name: bandwidth_efficiency(accelerator(name)) for name in shares} == pytest.approx(shares)
    shares = {"A100 40GB SXM": 0.51, "H200": 0.35, "RTX 4090": statistics.median([0.51, 0.35])}
    assert {name: attention_efficiency(accelerator(name)) for name in shares} == shares
    seconds = {"launch": 6.6e-6, "matmul_startup": 9.1e-6, "collective_overhead": 14.2e-6}
    assert {figure: overhead_seconds(figure) for figure in seconds} == pytest.approx(seconds)


def test_every_row_of_an_efficiency_is_whole():
    names = {one.name for one in accelerators()} | {"cuda"}
    figures = {"matmul": "measured_tflops", "attention": "share", "attention_backward": "share"}
    figures |= dict.fromkeys(("bandwidth", "collectives", "host_link"), "measured_gb_per_second")
    for row in rows("efficiencies"):
        assert set(row["of"]) <= names
        assert row[figures.get(row["figure"], "microseconds")] > 0
        assert row["source"].startswith("https://")
        assert str(row["date"]) in ("2026-11-20", "2026-11-23", "2026-11-24")
        estimated = ("attention", "attention_backward", "launch", "matmul_startup", "collective_overhead")
        assert ("estimated" in row) == (row["figure"] in estimated)
        assert row.get("dtype", "bf16") in DTYPES


def test_every_accelerator_has_a_share_of_what_it_states():
    """A third to five quarters of the peak, 70 to 95% of the bandwidth: a slip in a row or a unit would show here."""
    for one in accelerators():
        for dtype in one.peak_flops_per_second:
            assert 1 / 3 < matmul_efficiency(one, dtype) < 1.25
        assert 0.7 < bandwidth_efficiency(one) < 0.95


PCIE = statistics.median([23 / 63, 28 / 63])


def test_collectives_and_the_host():
    stated = {
        ("H100 SXM", 8): 335.2e9,
        ("MI300X", 8): 312.912e9,
        ("MI300X", 2): 312.912e9 / 7,  # one of seven links
        ("RTX 4090", 8): 31e9 * PCIE,
        ("T4", 2): 15.75e9 * PCIE,
    }
    assert {of: collective_bandwidth(*of) for of in stated} == pytest.approx(stated)
    assert [host_bandwidth(name) for name in ("H200", "L4")] == pytest.approx([55.06e9, 31e9 * 55.06 / 63])
    assert (collective_bandwidth("A10G", 8), host_bandwidth("A10G")) == (None, None)


def test_every_row_of_a_link_is_whole():
    names = {one.name for one in accelerators()}
    seen = [name for row in rows("links") for name in row["of"]]
    assert set(seen) <= names
    assert len(seen) == len(set(seen))
    for row in rows("links"):
        assert row["kind"] in ("nvlink", "xgmi", "pcie")
        assert row["host_gb_per_second"] in (15.75, 31, 63)
        assert row["gb_per_second"] >= row["host_gb_per_second"]
        assert row["source"].startswith("https://")
        assert str(row["date"]) == "2026-11-20"
