"""How fast accelerators exchange data: the table, and what is reached of it."""

from __future__ import annotations

import statistics

import pytest

from hf_efficient.facts.accelerators import (
    accelerators,
    collective_bandwidth,
    collective_overhead,
    host_bandwidth,
    link_of,
)
from hf_efficient.facts.tables import rows

PCIE = statistics.median([23 / 63, 28 / 63])


@pytest.mark.parametrize(
    ("name", "ranks", "gigabytes", "estimated"),
    [
        ("H100 SXM", 8, 335.2, False),
        ("A100 40GB SXM", 2, 205.3, False),
        ("MI300X", 8, 312.912, False),
        ("MI300X", 2, 312.912 / 7, False),  # one of seven links
        ("RTX 5090", 8, 28, False),
        ("RTX 4090", 8, 31 * PCIE, True),
        ("T4", 2, 15.75 * PCIE, True),
    ],
)
def test_collectives(name, ranks, gigabytes, estimated):
    found = collective_bandwidth(name, ranks)
    assert found is not None
    assert (found.value, found.estimated) == (pytest.approx(gigabytes * 1e9), estimated)


def test_with_the_host():
    assert host_bandwidth("H200").value == pytest.approx(55.06e9)
    other = host_bandwidth("L4")
    assert (other.value, other.estimated) == (pytest.approx(31e9 * 55.06 / 63), True)


def test_the_overhead_is_an_estimate():
    assert (collective_overhead().value, collective_overhead().estimated) == (pytest.approx(14.2e-6), True)


def test_what_is_not_known_is_none():
    assert link_of("A10G") is None
    assert collective_bandwidth("A10G", 8) is None
    assert host_bandwidth("A10G") is None


def test_every_row_is_whole():
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
