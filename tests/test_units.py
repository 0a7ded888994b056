from __future__ import annotations

import pytest

from hf_efficient.units import clock, count, seconds, share, short_count


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
