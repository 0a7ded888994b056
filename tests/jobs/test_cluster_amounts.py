from __future__ import annotations

import pytest

from hf_efficient.jobs.cluster import Gpus, clock_time, gpus_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("90m", 5400),
        ("12h", 43200),
        ("2d", 172800),
        ("12:00:00", 43200),
        ("1-12:30:05", 131405),  # 86400 + 12 * 3600 + 30 * 60 + 5
        ("100:00:00", 360000),
        ("0h", None),
        ("00:00:00", None),
        ("12", None),
        ("1.5h", None),
        ("12:30", None),
        ("soon", None),
    ],
)
def test_times_are_read(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(5400, "01:30:00"), (131405, "1-12:30:05"), (172800, "2-00:00:00")])
def test_times_are_written_as_slurm_writes_them(seconds, text):
    assert clock_time(seconds) == text
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("said", "gpus"),
    [
        (8, Gpus(None, 8)),
        ("8", Gpus(None, 8)),
        ("H100:8", Gpus("H100", 8)),
        ("A100-80GB:4", Gpus("A100-80GB", 4)),
        ("H100", None),
        ("H100:", None),
        ("H100:0", None),
        ("0", None),
        ("H 100:2", None),
        ("a:b:2", None),
    ],
)
def test_gpus_are_read(said, gpus):
    assert gpus_of(said) == gpus
