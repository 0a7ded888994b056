"""Figures in words."""

from __future__ import annotations

import pytest

from hf_efficient.report.numbers import energies, energy, flops, grams, prices, tokens_per_second, usd


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "$0.00"),
        (0.00001234, "$0.0000123"),
        (0.0312, "$0.0312"),
        (0.000128, "$0.000128"),
        (0.0999, "$0.0999"),
        (0.5, "$0.500"),
        (1, "$1.00"),
        (12.345, "$12.35"),
        (1234.5, "$1,234"),
    ],
)
def test_money(value, told):
    assert usd(value) == told


@pytest.mark.parametrize(
    ("joules", "told"),
    [(0, "0 J"), (512.4, "512 J"), (1800, "0.5 Wh"), (36_000, "10 Wh"), (3.6e6, "1 kWh"), (4.5e9, "1,250 kWh")],
)
def test_energy(joules, told):
    assert energy(joules) == told


def test_masses_rates_and_work():
    assert [grams(value) for value in (0.84, 999, 12_100)] == ["0.84 g", "999 g", "12.1 kg"]
    assert [tokens_per_second(value) for value in (86.27, 14941.2)] == ["86.3 tokens/s", "14,941 tokens/s"]
    assert [flops(value) for value in (0, 950, 9.89e14, 6.1e17, 2e21)] == [
        "0 FLOP",
        "950 FLOP",
        "989 TFLOP",
        "610 PFLOP",
        "2,000 EFLOP",
    ]


def test_columns_stand_under_each_other():
    assert energies({"forward": 36_000.0, "logging": 36.0, "none": 0.0}) == {
        "forward": "10.00 Wh",
        "logging": "0.01 Wh",
        "none": "0.00 Wh",
    }
    assert energies({"a": 512.0, "b": 1.5}) == {"a": "512.0 J", "b": "1.5 J"}
    assert prices({"forward": 0.1259, "logging": 0.00012}) == {"forward": "$0.1259", "logging": "$0.0001"}
    assert prices({"a": 1234.5}) == {"a": "$1,234.50"}
    assert (energies({}), prices({})) == ({}, {})
