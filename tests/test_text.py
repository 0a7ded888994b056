from __future__ import annotations

import pytest

from hf_efficient.text import clock, count, flops, grams, kilowatt_hours, seconds, share, short_count, usd


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
    ("number", "text"),
    [
        (950, "950 FLOPs"),
        (999.6, "1 kFLOPs"),
        (1_234_567, "1.23 MFLOPs"),
        (472e9, "472 GFLOPs"),
        (12.34e12, "12.3 TFLOPs"),
        (999.4e12, "999 TFLOPs"),
        (2e18, "2 EFLOPs"),
    ],
)
def test_flops(number, text):
    assert flops(number) + "FLOPs" == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0:00"), (42.4, "0:42"), (59.6, "1:00"), (725, "12:05"), (9065, "2:31:05"), (360000, "100:00:00")],
)
def test_a_clock(value, text):
    assert clock(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.4, "0"), (950, "950"), (999.6, "1.00k"), (12_345, "12.3k"), (123_456, "123k"), (1.24e6, "1.24M")],
)
def test_a_short_count(value, text):
    assert short_count(value) == text


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
