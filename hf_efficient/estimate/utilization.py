"""How much of an accelerator's peak a run used: MFU and HFU."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Utilization:
    """A share of the peak, or why there is none.

    Attributes:
        share: FLOPs done over FLOPs that the accelerators could have done, 1.0 for the peak; None where unknown.
        reason: why it is unknown; None where it is known.
        estimated: whether the peak was measured or guessed here rather than stated by the vendor.
    """

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
    """``flops / (seconds * accelerators * peak)``.

    With the model's FLOPs this is MFU, model FLOPs utilization (Chowdhery et al., PaLM, 2022, appendix B); with the
    hardware's, recompute and padding included, HFU. The peak is the vendor's dense figure of the dtype in use.

    Hand-worked: 1.2e15 FLOPs in 2 s on 4 accelerators of 312e12 FLOP/s: 1.2e15 / (2 * 4 * 312e12) = 0.48077.

    Args:
        flops: FLOPs on all accelerators together; None where they could not be counted.
        seconds: wall time.
        peak_flops_per_second: peak of one accelerator; None where unknown.
        accelerators: how many there were.
        peak_estimated: see ``Utilization.estimated``.
    """
    if flops is None:
        return Utilization(None, "the FLOPs of this model are not known")
    if peak_flops_per_second is None:
        return Utilization(None, "the accelerator's peak in this dtype is not known")
    if not (math.isfinite(seconds) and seconds > 0):
        return Utilization(None, "no time was measured")
    if peak_flops_per_second <= 0 or accelerators < 1:
        return Utilization(None, "there is no accelerator")
    return Utilization(flops / (seconds * accelerators * peak_flops_per_second), estimated=peak_estimated)
