"""Calibrations on disk: what is kept is found again, and what is damaged is told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.profilers.calibration_files import load_calibration, save_calibration
from hf_efficient.records.device import Calibration, MatmulRate

HELD = Calibration(
    "NVIDIA GeForce RTX 4090", "cuda", "2.13.0", "2026-01-02", (MatmulRate("bf16", 4096, 1.6e14),), 9.2e11, 6e-6, False
)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    return tmp_path / "calibrations"


def test_what_is_kept_is_found(cache, caplog):
    assert load_calibration(HELD.device_name) is None
    assert caplog.messages == []
    assert save_calibration(HELD) == cache / "nvidia-geforce-rtx-4090.json"
    assert load_calibration(HELD.device_name) == HELD
    later = dataclasses.replace(HELD, measured_on="2026-02-03", busy=None, threads=4)
    save_calibration(later)
    assert load_calibration(HELD.device_name) == later
    assert [path.name for path in cache.iterdir()] == ["nvidia-geforce-rtx-4090.json"]


def test_another_device_of_the_same_file_name_is_none(cache):
    save_calibration(HELD)
    assert load_calibration("nvidia geforce rtx 4090") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda held: "", "Expecting value"),
        (lambda held: "[]", "not a calibration"),
        (lambda held: json.dumps({**held, "schema_version": 2}), "schema_version 2 is not 1, which is read here"),
        (lambda held: json.dumps({**held, "surprise": 1}), "surprise"),
        (lambda held: json.dumps({**held, "matmul": []}), "rates are positive numbers"),
        (lambda held: json.dumps({**held, "launch_seconds": 0}), "rates are positive numbers"),
        (lambda held: json.dumps({**held, "bandwidth_bytes_per_second": "fast"}), "not a calibration"),
        (lambda held: "\xff", "codec can't decode"),
    ],
)
def test_a_damaged_file_is_told_and_not_used(cache, caplog, change, told):
    path = save_calibration(HELD)
    path.write_text(change(HELD.to_json()), encoding="latin-1")
    assert load_calibration(HELD.device_name) is None
    (message,) = caplog.messages
    assert message.endswith("Measure again: hf-efficient env --calibrate")
    assert told in message


def test_a_cache_that_cannot_be_written_names_the_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"cannot be written: .*\. Set HF_EFFICIENT_CACHE to a folder that can be\."):
        save_calibration(HELD)


def test_reading_loads_no_torch():
    code = "import sys, hf_efficient.profilers.calibration_files; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
