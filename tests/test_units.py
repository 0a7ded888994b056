from __future__ import annotations

import pytest

from hf_efficient.units import count, flops, seconds, share


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
        (999.6, "1.00 kFLOPs"),
        (1_234_567, "1.23 MFLOPs"),
        (472e9, "472 GFLOPs"),
        (12.34e12, "12.3 TFLOPs"),
        (999.4e12, "999 TFLOPs"),
        (2e18, "2.00 EFLOPs"),
    ],
)
def test_flops(number, text):
    assert flops(number) + "FLOPs" == text
