from __future__ import annotations

import dataclasses

from hf_efficient.cli.env import calibration_lines
from hf_efficient.records.device import Calibration, MatmulRate

HELD = Calibration(
    "NVIDIA H200",
    "cuda",
    "2.13.0",
    "2026-01-02",
    (MatmulRate("bf16", 512, 3e13), MatmulRate("bf16", 4096, 7.88e14), MatmulRate("fp32", 8192, 5.1e13)),
    bandwidth_bytes_per_second=4.2513e12,
    launch_seconds=6.283e-6,
    busy=False,
)


def test_the_fastest_of_each_dtype():
    assert calibration_lines(HELD) == [
        "NVIDIA H200, torch 2.13.0, 2026-01-02",
        "  matmul bf16  788 TFLOP/s, at 4096 x 4096",
        "  matmul fp32  51 TFLOP/s, at 8192 x 8192",
        "  memory       4,251.3 GB/s, read and written by a copy",
        "  launch       6.28 us of the host for each kernel",
    ]


def test_how_far_to_trust_it():
    busy = calibration_lines(dataclasses.replace(HELD, busy=True))
    assert busy[-1] == "  Others used it meanwhile: these figures are uncertain. Measure again when it is idle."
    untold = calibration_lines(dataclasses.replace(HELD, busy=None))
    assert untold[-1] == "  Whether others used it meanwhile could not be told."


def test_threads_of_a_cpu():
    assert "NVIDIA H200, 1 thread, torch" in calibration_lines(dataclasses.replace(HELD, threads=1))[0]
    assert "NVIDIA H200, 8 threads, torch" in calibration_lines(dataclasses.replace(HELD, threads=8))[0]
