"""How fast a run is against what it could be: MFU, scaling, batches loaded beside it, small batches, instruments.

Loading: a process that loads its own batches pays for them one after the other with its computing. ``n`` workers load
beside it, and three things can bind: the computing itself, the loading of a batch by one worker of ``n``, and the
cores, which have both to do:

    step(0) = compute + load
    step(n) = max(compute, load / n, (compute * compute_cores + load_cpu) / cores)

Waiting for a disk or a network takes no core, so blocked loads overlap wholly, and CPU work only where cores are idle.
Threads that compute together wait for the one whose core a worker took: without a free core, that part of the loading's
CPU work adds to the computing:

    step(n) >= compute + load_cpu * (1 - free)    where free = cores - compute_cores < 1

Left out: what a worker costs itself, copying batches and memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.statistics import pair_slopes, percentile
from hf_efficient.text import counted


@dataclass(frozen=True)
class Utilization:
    """A share of the peak (1.0), or the reason why there is none; ``estimated``: the vendor does not state the peak."""

    share: float | None
    reason: str | None = None
    estimated: bool = False


def utilization(
    flops: float | None,
    seconds: float,
    peak_flops_per_second: float | None,
    accelerators: int = 1,
    *,
    peak_estimated: bool = False,
) -> Utilization:
    """``flops / (seconds * accelerators * peak)``. With the model's FLOPs this is MFU, model FLOPs utilization
    (Chowdhery et al., PaLM, 2022, appendix B); with the hardware's, recompute and padding included, HFU."""
    if flops is None:
        return Utilization(None, "the FLOPs of this model are not known")
    if peak_flops_per_second is None:
        return Utilization(None, "the accelerator's peak in this dtype is not known")
    if not (math.isfinite(seconds) and seconds > 0):
        return Utilization(None, "no time was measured")
    share = flops / (seconds * accelerators * peak_flops_per_second)
    if peak_estimated and share > 1:
        return Utilization(None, "the run was faster than the peak that was measured here, on a busy machine perhaps")
    return Utilization(share, estimated=peak_estimated)


def scaling_efficiency(
    rate: float | None, ranks: int, reference_rate: float | None, reference_ranks: int = 1
) -> float | None:
    """``(rate / ranks) / (reference_rate / reference_ranks)``: 1 where every rank is as fast as in the reference. With
    the same micro-batch per rank this is weak scaling: it shows communication, late ranks, and shared cores, memory and
    disks. It is above 1 where something else held up the reference. None: a rate is not known, or was 0 there."""
    return None if rate is None or not reference_rate else (rate / ranks) / (reference_rate / reference_ranks)


_NEAR_THE_BEST = 1.03
_BLOCKED = 0.5


@dataclass(frozen=True)
class StepLoad:
    """What a step computes and loads, by itself. ``blocked_seconds`` of loading take no core. ``helped_seconds`` are
    CPU time of the process's other threads, such as a tokenizer's; a worker has one, and takes so much longer."""

    compute_seconds: float
    compute_cores: float
    blocked_seconds: float
    cpu_seconds: float
    helped_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Loading the step's batches one after the other."""
        return self.blocked_seconds + self.cpu_seconds


def loaded_step_seconds(load: StepLoad, workers: int, cores: float) -> float:
    if workers == 0:
        return load.compute_seconds + load.seconds
    cpu_seconds = load.cpu_seconds + load.helped_seconds
    on_cores = (load.compute_seconds * load.compute_cores + cpu_seconds) / cores
    free = max(0.0, cores - load.compute_cores)
    if free < 1:
        on_cores = max(on_cores, load.compute_seconds + cpu_seconds * (1 - free))
    return max(load.compute_seconds, (load.blocked_seconds + cpu_seconds) / workers, on_cores)


def best_workers(load: StepLoad, cores: float) -> int:
    """The fewest workers within 3% of the best, at most one per core, two if half of loading or more is blocked."""
    most = max(1, math.floor(cores))
    if load.blocked_seconds >= _BLOCKED * load.seconds:
        most *= 2
    times = [loaded_step_seconds(load, workers, cores) for workers in range(1, most + 1)]
    return next(count for count, time in enumerate(times, start=1) if time <= _NEAR_THE_BEST * min(times))


_FEWEST = 8
_SPREAD = 0.04
_MOST_ERROR = 0.1


@dataclass(frozen=True)
class BatchTime:
    """``seconds = fixed + per_token * tokens``: what a micro-batch costs before it holds anything, and each token. The
    intercept is launching, Python and reading the weights (Hockney's line, see ``estimate/roofline.py``)."""

    fixed_seconds: float
    token_seconds: float


def batch_time(seconds: npt.NDArray[np.float64], tokens: npt.NDArray[np.float64]) -> BatchTime | None:
    """Fit the line robustly: Theil and Sen's median of slopes, which a few late steps do not move. None where there are
    fewer than eight micro-batches, their tokens hardly differ, slope or intercept is below 0, or the intercept's
    standard error is above a tenth of the mean time: that of the slope, ``s / (deviation of the tokens * sqrt(n))`` by
    the residuals' deviation ``s``, times the mean of the tokens."""
    known = np.isfinite(seconds) & np.isfinite(tokens)
    seconds, tokens = seconds[known], tokens[known]
    if len(seconds) < _FEWEST or tokens.std() < _SPREAD * tokens.mean():
        return None
    slopes = pair_slopes(tokens, seconds, least_share=0.1)
    slope = float(np.median(slopes)) if len(slopes) else 0.0
    fixed = float(np.median(seconds - slope * tokens))
    if slope <= 0 or fixed < 0:
        return None
    rest = seconds - fixed - slope * tokens
    deviation = float(np.quantile(np.abs(rest), 0.683))  # of a normal distribution, whatever a few late steps took
    error = deviation / (float(tokens.std()) * len(tokens) ** 0.5) * float(tokens.mean())
    return None if error > _MOST_ERROR * float(seconds.mean()) else BatchTime(fixed, slope)


_LEAST_OTHERS = 3


@dataclass(frozen=True)
class Slowdown:
    """How much longer the steps under an instrument took, at least 0; None where unknown, which ``why`` explains."""

    seconds: float | None
    why: str


def slowdown(under: Sequence[float], others: Sequence[float]) -> Slowdown:
    """``n * (median(under) - median(others))``; 0 where the difference is within the quartiles of the others, which are
    without the first step of the training. A log or a checkpoint in some step does not count as the instrument's."""
    if not under:
        return Slowdown(None, "no step was done under it")
    if len(others) < _LEAST_OTHERS:
        with_what = f"{counted(len(others), 'step')} without it to compare with"
        return Slowdown(None, f"what it slows its steps by is not known: {with_what}")
    ordered = sorted(others)
    low, middle, high = (percentile(ordered, share) or 0.0 for share in (0.25, 0.5, 0.75))
    more = (percentile(sorted(under), 0.5) or 0.0) - middle
    if more <= high - low:
        return Slowdown(0.0, f"its steps were not slower than the {len(others)} others, within their spread")
    return Slowdown(len(under) * more, f"its steps compared with {len(others)} others, by their medians")
