from __future__ import annotations

import pytest

from hf_efficient.units import count, grams, kilowatt_hours, seconds, share, usd


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999_999, "999,999"),
        (1_000_000, "1.00 million"),
        (134_515_008, "134.52 million"),
        (8_030_261_248, "8.03 billion"),
    ],
)
def test_count(number, text):
    assert count(number) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7620, "2 h 07 min"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_share():
    assert share(0.0350123) == "3.5%"
    assert share(0.000712) == "0.0712%"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "$0.00"), (0.00031, "$0.00031"), (0.0199, "$0.020"), (0.42, "$0.42"), (1234.5, "$1,234.50")],
)
def test_usd(value, text):
    assert usd(value) == text


@pytest.mark.parametrize(
    ("joules", "text"),
    [(0, "0 Wh"), (126, "0.035 Wh"), (44_280, "0.0123 kWh"), (16_200_000, "4.5 kWh"), (4.428e9, "1,230 kWh")],
)
def test_kilowatt_hours(joules, text):
    assert kilowatt_hours(joules) == text


@pytest.mark.parametrize(("value", "text"), [(0.02129, "0.0213 g"), (5.9, "5.9 g"), (999, "999 g"), (1213, "1.21 kg")])
def test_grams(value, text):
    assert grams(value) == text
