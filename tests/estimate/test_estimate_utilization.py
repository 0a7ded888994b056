"""MFU and HFU by hand, and why there is none."""

from __future__ import annotations

import pytest

from hf_efficient.estimate.throughput import Utilization, utilization


def test_by_hand():
    """1.2e15 FLOPs in 2 s on 4 x 312e12 FLOP/s: 1.2e15 / 2.496e15."""
    found = utilization(1.2e15, 2.0, 312e12, 4)
    assert found.share == pytest.approx(0.480769230769, abs=1e-12)
    assert (found.reason, found.estimated) == (None, False)


def test_a_measured_peak_is_marked():
    assert utilization(50.0, 1.0, 100.0, peak_estimated=True) == Utilization(0.5, estimated=True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((None, 1.0, 1e12), "the FLOPs of this model are not known"),
        ((1e12, 1.0, None), "the accelerator's peak in this dtype is not known"),
        ((1e12, 0.0, 1e12), "no time was measured"),
        ((1e12, float("nan"), 1e12), "no time was measured"),
        ((1e12, 1.0, 1e12, 0), "there is no accelerator"),
    ],
)
def test_what_is_unknown_has_a_reason(arguments, reason):
    assert utilization(*arguments) == Utilization(None, reason)
