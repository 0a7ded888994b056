"""The time of a step from the work of its operators: the roofline model, with launching.

An operator can be no faster than its arithmetic at the device's rate, nor than its bytes at the memory's (Williams,
Waterman and Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM 52(4),
2009):

    device seconds of a call = max(startup + flops / math rate, bytes / memory rate)

Small products do not reach the rate of large ones. Their time is a line over their FLOPs, whose intercept is the
start-up (Hockney and Jesshope, "Parallel Computers", 1981: ``t = (n + n_half) / r_inf``): an efficiency of ``flops /
(flops + half)`` with ``half = startup * rate``. Other kernels' start-up is in the launch.

Torch queues kernels and runs ahead of a CUDA device. Each takes the host ``launch_seconds``; where the device is
faster than that it waits. Over a step, neither can finish before its own work is done:

    step seconds = max(sum of device seconds, launches * launch_seconds)

That is a lower bound: a stretch of tiny kernels, or reading a value back (``.item()``), makes the device wait too. On a
CPU nothing overlaps, and the two add up.

Only products (matmul, fused attention) have a math rate; the other families do a few FLOPs per byte.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hf_efficient.facts import tables as facts
from hf_efficient.records.device import Calibration, MatmulRate, OperatorWork

Bound = Literal["math", "bandwidth", "launch"]
BOUNDS: tuple[Bound, ...] = ("math", "bandwidth", "launch")


@dataclass(frozen=True)
class Roofs:
    """What a device really does, efficiency included; unknown rates are absent or None. ``startup_seconds`` are the
    device's, for each product; ``launch_seconds`` the host's, for each kernel. ``runs_ahead`` is False on a CPU. The
    backward of attention reaches ``attention_backward_share`` of the forward's rate."""

    matmul_flops_per_second: Mapping[str, float]
    attention_flops_per_second: Mapping[str, float]
    bytes_per_second: float | None
    startup_seconds: float
    launch_seconds: float
    runs_ahead: bool = True
    attention_backward_share: float = 1.0


@dataclass(frozen=True)
class OperatorTime:
    """Of all calls of an operator, on the device by bound, and on the host; longer where rates are ``unknown``."""

    math_seconds: float
    memory_seconds: float
    host_seconds: float
    unknown: tuple[str, ...] = ()

    @property
    def device_seconds(self) -> float:
        return max(self.math_seconds, self.memory_seconds)


@dataclass(frozen=True)
class StepTime:
    """Of a step's operators: at least the device's and the host's time, on a CPU their sum. ``launch`` is what no
    kernel covers; the bounds add up to ``seconds``. With ``unknown`` rates it may take longer."""

    seconds: float
    seconds_by_bound: Mapping[Bound, float]
    unknown: tuple[str, ...]

    @property
    def bound_shares(self) -> dict[str, float]:
        return {name: held / self.seconds for name, held in self.seconds_by_bound.items()}


def operator_time(work: OperatorWork, roofs: Roofs) -> OperatorTime:
    math_seconds, memory_seconds, unknown = 0.0, 0.0, []
    if work.family in ("matmul", "attention"):
        rates = roofs.matmul_flops_per_second if work.family == "matmul" else roofs.attention_flops_per_second
        rate = rates.get(work.dtype)
        if rate is None:
            unknown.append(f"FLOP/s of {work.family} in {work.dtype}")
        else:
            if work.family == "attention" and "backward" in work.name:
                rate *= roofs.attention_backward_share
            math_seconds = work.calls * roofs.startup_seconds + work.flops / rate
    moved = work.read_bytes + work.written_bytes
    if roofs.bytes_per_second is not None:
        memory_seconds = moved / roofs.bytes_per_second
    elif moved:
        unknown.append("bytes/s of the memory")
    host_seconds = work.calls * roofs.launch_seconds
    return OperatorTime(math_seconds, memory_seconds, host_seconds, tuple(unknown))


def step_time(operators: Iterable[OperatorWork], roofs: Roofs) -> StepTime:
    found = [operator_time(work, roofs) for work in operators]
    device, host = sum(one.device_seconds for one in found), sum(one.host_seconds for one in found)
    seconds = max(device, host) if roofs.runs_ahead else device + host
    by_bound: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
    for one in found:
        by_bound["math" if one.math_seconds > one.memory_seconds else "bandwidth"] += one.device_seconds
    by_bound["launch"] = seconds - device
    return StepTime(seconds, by_bound, tuple(dict.fromkeys(rate for one in found for rate in one.unknown)))


def accelerator_roofs(held: facts.Accelerator, calibration: Calibration | None = None) -> Roofs:
    """Of an accelerator: a calibration's rates, and for what it lacks the stated figure times the share reached. A
    dtype without a stated peak has no roof unless it was measured; nor has memory without a stated bandwidth."""
    peaks = {dtype: peak for dtype in facts.DTYPES if (peak := held.peak(dtype)) is not None}
    measured = _fastest(() if calibration is None else calibration.matmul)
    matmul: dict[str, float] = {
        dtype: peak * facts.matmul_efficiency(held, dtype) for dtype, peak in peaks.items() if dtype not in measured
    }
    # Fused attention computes in 16 bits.
    attention: dict[str, float] = {
        dtype: peak * facts.attention_efficiency(held) for dtype, peak in peaks.items() if dtype in ("bf16", "fp16")
    }
    if calibration is not None:
        bandwidth: float | None = calibration.bandwidth_bytes_per_second
        startup, launch = startup_seconds(calibration.matmul), calibration.launch_seconds
    else:
        stated = held.bandwidth_bytes_per_second
        bandwidth = None if stated is None else stated * facts.bandwidth_efficiency(held)
        startup, launch = facts.overhead_seconds("matmul_startup"), facts.overhead_seconds("launch")
    backward = facts.attention_backward_share()
    return Roofs(matmul | measured, attention, bandwidth, startup, launch, attention_backward_share=backward)


def cpu_roofs(calibration: Calibration) -> Roofs:
    """Of a CPU, which has no stated peak: as measured. Attention computes at the rate of products."""
    rates, launch = _fastest(calibration.matmul), calibration.launch_seconds
    return Roofs(rates, rates, calibration.bandwidth_bytes_per_second, 0.0, launch, runs_ahead=False)


def startup_seconds(rates: Iterable[MatmulRate]) -> float:
    """What small products take beyond their FLOPs at the fastest rate of their dtype: the median over dtypes and sizes.
    Only sizes at less than half of that rate count; 0 where there are none."""
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
