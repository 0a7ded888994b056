"""The roofs of a device: what was measured on it, else what was published of it, else what others of its kind reach."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hf_efficient.estimate.roofline import Roofs
from hf_efficient.facts.accelerators import (
    DTYPES,
    Accelerator,
    Reached,
    attention_efficiency,
    bandwidth_efficiency,
    launch_overhead,
    matmul_efficiency,
    matmul_startup,
)
from hf_efficient.records.device import Calibration, MatmulRate


@dataclass(frozen=True)
class SourcedRoofs:
    """Roofs, and where each comes from.

    Attributes:
        roofs: the rates.
        sources: by roof (``matmul bf16``, ``attention bf16``, ``memory``, ``startup``, ``launch``): where it is from.
        estimated: the roofs that nobody measured on such a device, in the order of ``sources``.
    """

    roofs: Roofs
    sources: Mapping[str, str]
    estimated: tuple[str, ...]


def accelerator_roofs(held: Accelerator, calibration: Calibration | None = None) -> SourcedRoofs:
    """Of an accelerator: a calibration's rates, and for what it lacks the stated figure times the share reached.

    A dtype without a stated peak has no roof unless it was measured; nor has memory without a stated bandwidth.

    Args:
        held: the accelerator.
        calibration: of the same device; None where it was not measured.
    """
    told = _Told()
    measured = _fastest(calibration.matmul) if calibration is not None else {}
    matmul, attention = dict[str, float](), dict[str, float]()
    for dtype in DTYPES:
        peak = held.peak(dtype)
        if peak is None:
            continue
        if dtype not in measured:
            matmul[dtype] = peak * told.of(f"matmul {dtype}", matmul_efficiency(held, dtype))
        if dtype in ("bf16", "fp16"):  # fused attention computes in 16 bits
            attention[dtype] = peak * told.of(f"attention {dtype}", attention_efficiency(held))
    if calibration is not None:
        matmul |= {dtype: told.measured(f"matmul {dtype}", rate, calibration) for dtype, rate in measured.items()}
        bandwidth: float | None = told.measured("memory", calibration.bandwidth_bytes_per_second, calibration)
        startup = told.measured("startup", startup_seconds(calibration.matmul), calibration)
        launch = told.measured("launch", calibration.launch_seconds, calibration)
    else:
        stated = held.bandwidth_bytes_per_second
        bandwidth = None if stated is None else stated * told.of("memory", bandwidth_efficiency(held))
        startup, launch = told.of("startup", matmul_startup()), told.of("launch", launch_overhead("cuda"))
    return told.roofs(Roofs(matmul, attention, bandwidth, startup, launch))


def cpu_roofs(calibration: Calibration) -> SourcedRoofs:
    """Of a CPU, which has no stated peak: as measured. Attention computes at the rate of products."""
    told = _Told()
    rates = {
        dtype: told.measured(f"matmul {dtype}", rate, calibration)
        for dtype, rate in _fastest(calibration.matmul).items()
    }
    bandwidth = told.measured("memory", calibration.bandwidth_bytes_per_second, calibration)
    launch = told.measured("launch", calibration.launch_seconds, calibration)
    return told.roofs(Roofs(rates, rates, bandwidth, 0.0, launch, runs_ahead=False))


def startup_seconds(rates: Iterable[MatmulRate]) -> float:
    """What small products take beyond their FLOPs at the fastest rate of their dtype: the median over dtypes and sizes.

    Only sizes at less than half of that rate tell it: there it is most of the time. 0 where there are none.

    Hand-worked: 512 (268,435,456 FLOPs) at 26.84 TFLOP/s takes 10 us, of which 2.68 us at the fastest, 100 TFLOP/s: 7.3
    us of start-up.

    Args:
        rates: of all sizes and dtypes.
    """
    known = tuple(rates)
    fastest = _fastest(known)
    excess = [
        rate.flops / rate.flops_per_second - rate.flops / fastest[rate.dtype]
        for rate in known
        if rate.flops_per_second < fastest[rate.dtype] / 2
    ]
    return statistics.median(excess) if excess else 0.0


def _fastest(rates: Iterable[MatmulRate]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rate in rates:
        found[rate.dtype] = max(rate.flops_per_second, found.get(rate.dtype, 0.0))
    return found


class _Told:
    """Notes where a figure is from on its way into the roofs."""

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._estimated: list[str] = []

    def of(self, roof: str, reached: Reached) -> float:
        self._sources[roof] = reached.source
        if reached.estimated:
            self._estimated.append(roof)
        return reached.value

    def measured(self, roof: str, value: float, calibration: Calibration) -> float:
        busy = " while it was busy" if calibration.busy else ""
        self._sources[roof] = f"measured on {calibration.device_name}{busy} ({calibration.measured_on})"
        return value

    def roofs(self, roofs: Roofs) -> SourcedRoofs:
        return SourcedRoofs(roofs, self._sources, tuple(roof for roof in self._sources if roof in self._estimated))
