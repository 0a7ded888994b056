"""What an instrument costs, from the durations of the steps with and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_efficient.estimate.percentiles import percentile

_LEAST_OTHERS = 3


@dataclass(frozen=True)
class Slowdown:
    """How much longer the steps under an instrument took.

    Attributes:
        seconds: over all of them, at least 0; None where it could not be told.
        why: why not, or what it was compared with.
    """

    seconds: float | None
    why: str


def slowdown(under: Sequence[float], others: Sequence[float]) -> Slowdown:
    """Medians compared, so that a log or a checkpoint in some step does not count as the instrument's.

    ``n * (median(under) - median(others))``. A difference inside the spread of the other steps (from their first to
    their third quartile) is no difference, and told as 0.

    Args:
        under: seconds of each step under the instrument.
        others: seconds of each other step, without the first one of the training.
    """
    if not under:
        return Slowdown(None, "no step was done under it")
    if len(others) < _LEAST_OTHERS:
        with_what = f"{len(others)} steps without it to compare with"
        return Slowdown(None, f"what it slows its steps by is not known: {with_what}")
    ordered = sorted(others)
    low, middle, high = (percentile(ordered, share) or 0.0 for share in (0.25, 0.5, 0.75))
    more = (percentile(sorted(under), 0.5) or 0.0) - middle
    if more <= high - low:
        return Slowdown(0.0, f"its steps were not slower than the {len(others)} others, within their spread")
    return Slowdown(len(under) * more, f"its steps compared with {len(others)} others, by their medians")
