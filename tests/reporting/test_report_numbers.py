"""Figures in words."""

from __future__ import annotations

from hf_efficient.reporting.labels import energies, prices, short_number, tokens_per_second


def test_rates():
    assert [tokens_per_second(value) for value in (86.27, 14941.2)] == ["86.3 tokens/s", "14,941 tokens/s"]


def test_short_numbers():
    values = (0.0, 0.0421, 0.05, 0.994, 1.0, 1.55, 83.24, 99.96, 1234.5)
    told = ["0", "0.042", "0.050", "0.99", "1.0", "1.6", "83.2", "100", "1,234"]
    assert [short_number(value) for value in values] == told


def test_columns_stand_under_each_other():
    assert energies({"forward": 36_000.0, "logging": 360.0, "none": 0.0}) == {
        "forward": "0.0100 kWh",
        "logging": "0.0001 kWh",
        "none": "0.0000 kWh",
    }
    assert energies({"a": 1800.0, "b": 3.6}) == {"a": "0.500 Wh", "b": "0.001 Wh"}
    assert prices({"forward": 0.1259, "logging": 0.00012}) == {"forward": "$0.126", "logging": "$0.000"}
    assert prices({"a": 1234.5}) == {"a": "$1,234.50"}
    assert (energies({}), prices({})) == ({}, {})
